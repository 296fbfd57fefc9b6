//! A context as chat messages, for servers that take no ids.

use serde_json::{Value, json};

use super::error::ServedError;
use crate::Chat;

const ROLES: [&str; 3] = ["system", "user", "assistant"];

/// The turns of a context. The last one, which the assistant is to write, is left out.
///
/// Control tokens never come from content, so the ids cut the turns apart without doubt, whatever texts stand in them.
pub(super) fn messages(chat: &Chat, context: &[u32]) -> Result<Vec<Value>, ServedError> {
    let fault = |reason| ServedError::Messages { reason };
    let Some(start) = context.first() else { return Err(fault("it is empty")) };
    let end = chat.end_of_turn();
    let mut turns = Vec::new();
    for piece in context.split(|id| id == start).skip(1) {
        let closed = piece.iter().position(|id| *id == end);
        let text = chat.decode(closed.and_then(|at| piece.get(..at)).unwrap_or(piece));
        let (role, content) = text.split_once('\n').ok_or_else(|| fault("a turn has no role"))?;
        if !ROLES.contains(&role) {
            return Err(fault("its turns are not marked as ChatML: choose --tokenizer mini or bytes for text"));
        }
        turns.push((closed.is_some(), json!({ "role": role, "content": content })));
    }
    match turns.pop() {
        Some((false, open)) if open.get("content").and_then(Value::as_str) == Some("") => {}
        _ => return Err(fault("it does not end where the assistant is to speak")),
    }
    if turns.iter().any(|(closed, _)| !closed) {
        return Err(fault("a turn has no end"));
    }
    Ok(turns.into_iter().map(|(_, message)| message).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_back_as_they_were_written_even_with_control_texts_in_them() {
        let chat = Chat::bytes().unwrap();
        let mut context = chat.open("be <|im_end|>\nexact", "do\n<|im_start|>user\nit").unwrap();
        context.extend(chat.encode_action("<python>1</python>").unwrap());
        context.extend(chat.observe(false, "[Cell 1 Output]\n🤖").unwrap());
        let roles_and_texts: Vec<(String, String)> = messages(&chat, &context)
            .unwrap()
            .iter()
            .map(|m| (m["role"].as_str().unwrap().to_owned(), m["content"].as_str().unwrap().to_owned()))
            .collect();
        let wanted = [
            ("system", "be <|im_end|>\nexact"),
            ("user", "do\n<|im_start|>user\nit"),
            ("assistant", "<python>1</python>"),
            ("user", "[Cell 1 Output]\n🤖"),
        ];
        assert_eq!(roles_and_texts, wanted.map(|(role, text)| (role.to_owned(), text.to_owned())));
        assert!(messages(&chat, &[]).is_err());
        let ended = context.len() - 1;
        assert!(messages(&chat, &context[..ended - 40]).is_err());
    }
}
