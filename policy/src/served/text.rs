//! Any server with a chat endpoint: text in, text out.
//!
//! Which ids the server sampled, and with which probabilities, is not known, and nothing is guessed: the text is written with
//! the tokenizer given, and the completion says that it has no log-probabilities.

use serde_json::{Value, json};

use super::check::CELL_END;
use super::error::ServedError;
use super::messages::messages;
use super::{End, Given, Job, Link, Score};

const CHAT: &str = "/v1/chat/completions";

pub(super) async fn complete(link: &Link, job: &Job) -> Result<Given, ServedError> {
    let request = json!({
        "model": link.model,
        "messages": messages(&link.chat, &job.context)?,
        "max_tokens": job.max_tokens,
        "temperature": job.temperature,
        "top_p": job.top_p,
        // Some servers take no more than 31 bits.
        "seed": job.seed() >> 22,
        "stop": [CELL_END],
        "n": 1,
        "stream": false,
    });
    let reply = link.http.post(CHAT, &request).await?;
    read(link, &reply)
}

fn read(link: &Link, reply: &Value) -> Result<Given, ServedError> {
    let fault = |reason: String| link.http.reply(CHAT, reason);
    let choice = reply.pointer("/choices/0").ok_or_else(|| fault("it has no choice".to_owned()))?;
    let text = choice.pointer("/message/content").and_then(Value::as_str);
    let text = text.ok_or_else(|| fault("its message has no text".to_owned()))?;
    let (text, end) = match choice.get("finish_reason").and_then(Value::as_str) {
        Some("stop") => closed(text),
        Some("length") => match text.split_once(CELL_END) {
            Some((before, _)) => (format!("{before}{CELL_END}"), End::CellEnd),
            None => (text.to_owned(), End::MaxTokens),
        },
        other => return Err(fault(format!("it ended for the reason {other:?}"))),
    };
    let failed = |error: crate::PolicyError| fault(error.to_string());
    let mut tokens = link.chat.encode_action(&text).map_err(failed)?;
    if end == End::EndOfTurn {
        tokens.push(link.chat.end_of_turn());
    }
    Ok(Given { text, tokens, logprobs: Vec::new(), score: Score::Absent, end })
}

/// Servers leave the stop text out of what they give, so an open cell was ended by it.
fn closed(text: &str) -> (String, End) {
    match text.split_once(CELL_END) {
        Some((before, _)) => (format!("{before}{CELL_END}"), End::CellEnd),
        None if text.contains("<python>") => (format!("{text}{CELL_END}"), End::CellEnd),
        None => (text.to_owned(), End::EndOfTurn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_text_is_put_back_and_what_follows_it_is_not_kept() {
        for (text, wanted, end) in [
            ("<thought>t</thought>\n<python>x", "<thought>t</thought>\n<python>x</python>", End::CellEnd),
            ("<python>x</python>\nmore", "<python>x</python>", End::CellEnd),
            ("I cannot.", "I cannot.", End::EndOfTurn),
        ] {
            assert_eq!(closed(text), (wanted.to_owned(), end));
        }
    }
}
