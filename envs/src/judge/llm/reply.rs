//! A verdict out of a model's reply.

use serde_json::Value as Json;

use super::prompt::Contract;

/// What the model said.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) score: f64,
    pub(super) reason: String,
    /// The reply, whole.
    pub(super) reply: String,
}

/// Reads the last JSON object of the reply that has the contract's field: with a fence or without, with prose around it or
/// none.
///
/// # Errors
/// Says what is missing. A score outside [0, 1] is none, and neither is a success that is no boolean.
pub(super) fn read(reply: &str, contract: Contract) -> Result<Verdict, String> {
    let field = match contract {
        Contract::Success => "success",
        Contract::Graded => "overall_score",
    };
    let object = objects(reply).into_iter().rfind(|object| object.get(field).is_some());
    let Some(object) = object else {
        return Err(format!("it has no JSON object with `{field}`"));
    };
    let value = object.get(field).unwrap_or(&Json::Null);
    let score = match contract {
        Contract::Success => f64::from(u8::from(truth(value).ok_or_else(|| format!("its `success` is {value}"))?)),
        Contract::Graded => {
            number(value).ok_or_else(|| format!("its `overall_score` is {value}, not a number from 0 to 1"))?
        }
    };
    let reason = ["reason", "reasoning"].iter().find_map(|name| object.get(*name).and_then(Json::as_str));
    Ok(Verdict { score, reason: reason.unwrap_or_default().to_owned(), reply: reply.to_owned() })
}

/// Every JSON object that stands in the text, outermost ones only.
fn objects(text: &str) -> Vec<Json> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let from = rest.get(at..).unwrap_or_default();
        let mut reader = serde_json::Deserializer::from_str(from).into_iter::<Json>();
        let length = match reader.next() {
            Some(Ok(object)) => {
                found.push(object);
                reader.byte_offset()
            }
            _ => 1,
        };
        rest = from.get(length..).unwrap_or_default();
    }
    found
}

fn truth(value: &Json) -> Option<bool> {
    match value {
        Json::Bool(value) => Some(*value),
        Json::String(text) => match text.trim().to_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

fn number(value: &Json) -> Option<f64> {
    let number = match value {
        Json::Number(number) => number.as_f64()?,
        Json::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    (0.0..=1.0).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn success(reply: &str) -> Option<f64> {
        read(reply, Contract::Success).ok().map(|verdict| verdict.score)
    }

    fn graded(reply: &str) -> Option<f64> {
        read(reply, Contract::Graded).ok().map(|verdict| verdict.score)
    }

    #[test]
    fn verdicts_are_read_however_they_are_wrapped() {
        for (reply, wanted) in [
            (r#"{"reason": "ok", "success": true}"#, Some(1.0)),
            ("```json\n{\"reason\": \"no\", \"success\": false}\n```", Some(0.0)),
            ("Let me think {as I do}.\n{\"success\": \"True\"} Done.", Some(1.0)),
            (r#"{"success": true} no, wait: {"reason": "it }{ failed", "success": "false"}"#, Some(0.0)),
            ("<think>{\"success\": true?}</think>{\"success\": true}", Some(1.0)),
            (r#"{"success": 1}"#, None),
            (r#"{"success": null}"#, None),
            (r#"{"success": "yes"}"#, None),
            (r#"{"reason": "half", "succ"#, None),
            ("The agent did well, so I would say: success.", None),
            (r#"{"overall_score": 1}"#, None),
            ("", None),
        ] {
            assert_eq!(success(reply), wanted, "{reply}");
        }
        for (reply, wanted) in [
            (r#"{"checklist": ["a"], "checklist_scores": [0.5], "reasoning": "r", "overall_score": 0.5}"#, Some(0.5)),
            (r#"{"overall_score": "0.25"}"#, Some(0.25)),
            (r#"{"overall_score": 1}"#, Some(1.0)),
            (r#"{"overall_score": 1.5}"#, None),
            (r#"{"overall_score": -0.1}"#, None),
            (r#"{"overall_score": true}"#, None),
            (r#"{"success": true}"#, None),
        ] {
            assert_eq!(graded(reply), wanted, "{reply}");
        }
    }

    #[test]
    fn the_reason_is_kept() {
        let verdict = read(r#"{"reasoning": "it counted", "success": true}"#, Contract::Success);
        assert_eq!(verdict.map(|verdict| verdict.reason).as_deref(), Ok("it counted"));
    }
}
