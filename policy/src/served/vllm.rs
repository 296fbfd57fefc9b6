//! vLLM: the completions endpoint, with the fields that make it take and give ids.

use serde_json::{Value, json};

use super::check::{self, CELL_END, Reason};
use super::error::ServedError;
use super::{Given, Job, Link, Score, ids, logprob};

const COMPLETIONS: &str = "/v1/completions";
/// What `return_tokens_as_token_ids` puts before an id.
const ID: &str = "token_id:";

/// The request for ids of a text with control tokens in it; SGLang takes the same.
pub(super) fn tokenize(model: &str, text: &str) -> (&'static str, Value) {
    ("/tokenize", json!({ "model": model, "prompt": text, "add_special_tokens": false }))
}

pub(super) async fn complete(link: &Link, job: &Job) -> Result<Given, ServedError> {
    let reply = link.http.post(COMPLETIONS, &request(link, job)).await?;
    read(link, job, &reply)
}

/// Every setting that a model's own defaults could change is named.
fn request(link: &Link, job: &Job) -> Value {
    json!({
        "model": link.model,
        "prompt": job.context,
        "add_special_tokens": false,
        "max_tokens": job.room(),
        "temperature": job.temperature,
        "top_p": job.top_p,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": job.seed(),
        "n": 1,
        "stop": [CELL_END],
        "include_stop_str_in_output": true,
        "stop_token_ids": [link.chat.end_of_turn()],
        "skip_special_tokens": false,
        "spaces_between_special_tokens": false,
        "logprobs": 1,
        "return_token_ids": true,
        "return_tokens_as_token_ids": true,
        "stream": false,
    })
}

fn read(link: &Link, job: &Job, reply: &Value) -> Result<Given, ServedError> {
    let fault = |reason: &str| link.http.reply(COMPLETIONS, reason);
    let choice = reply.pointer("/choices/0").ok_or_else(|| fault("it has no choice"))?;
    let seen = reply.pointer("/usage/prompt_tokens").and_then(Value::as_u64);
    let seen = seen.ok_or_else(|| fault("it does not count the prompt's tokens"))?;
    let prompt = choice.get("prompt_token_ids").filter(|ids| !ids.is_null());
    let prompt =
        prompt.map(|list| ids(Some(list)).ok_or_else(|| fault("its prompt_token_ids are no ids"))).transpose()?;
    check::prompt(&job.context, seen, prompt.as_deref())?;
    let named = named_ids(choice.pointer("/logprobs/tokens"));
    let tokens = ids(choice.get("token_ids"))
        .or_else(|| named.clone())
        .ok_or_else(|| fault("it has neither token_ids nor tokens named by id"))?;
    let values = choice.pointer("/logprobs/token_logprobs").and_then(Value::as_array);
    let values = values.ok_or_else(|| fault("it has no log-probabilities"))?;
    if values.len() != tokens.len() {
        return Err(ServedError::Counts { tokens: tokens.len(), logprobs: values.len() });
    }
    if let Some(named) = named
        && let Some(at) = (0..tokens.len().max(named.len())).find(|at| tokens.get(*at) != named.get(*at))
    {
        let id = tokens.get(at).copied().unwrap_or_default();
        let other = named.get(at).map_or("none".to_owned(), ToString::to_string);
        return Err(ServedError::Mismatch { at, id, other });
    }
    let logprobs: Option<Vec<f32>> = values.iter().map(logprob).collect();
    let present = values.iter().filter(|value| value.is_number()).count();
    let logprobs = logprobs.ok_or(ServedError::Counts { tokens: tokens.len(), logprobs: present })?;
    let reason = match choice.get("finish_reason").and_then(Value::as_str) {
        Some("stop") => Reason::Stop,
        Some("length") => Reason::Length,
        other => return Err(fault(&format!("it ended for the reason {other:?}"))),
    };
    // With temperature 1 and nothing left out, every --logprobs-mode reports the same distribution.
    let score = if job.is_plain() { Score::Own } else { Score::Unknown };
    check::finish(&link.chat, job, tokens, logprobs, score, reason)
}

/// Ids out of `["token_id:5", ..]`; `None` where the server wrote texts.
fn named_ids(value: Option<&Value>) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_str()?.strip_prefix(ID)?.parse().ok();
    value?.as_array()?.iter().map(id).collect()
}
