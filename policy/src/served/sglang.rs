//! SGLang: its own generation endpoint.

use serde_json::{Value, json};

use super::check::{self, CELL_END, Reason};
use super::error::ServedError;
use super::{Given, Job, Link, Score, ids, logprob};

const GENERATE: &str = "/generate";

pub(super) async fn complete(link: &Link, job: &Job) -> Result<Given, ServedError> {
    let reply = link.http.post(GENERATE, &request(link, job)).await?;
    read(link, job, &reply)
}

/// Every setting that a model's own defaults could change is named.
fn request(link: &Link, job: &Job) -> Value {
    json!({
        "input_ids": job.context,
        "sampling_params": {
            "max_new_tokens": job.room(),
            "temperature": job.temperature,
            "top_p": job.top_p,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "sampling_seed": job.seed(),
            "stop": [CELL_END],
            "stop_token_ids": [link.chat.end_of_turn()],
            "no_stop_trim": true,
            "skip_special_tokens": false,
            "spaces_between_special_tokens": false,
        },
        "return_logprob": true,
        // Of the prompt's tokens none is wanted.
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "stream": false,
    })
}

fn read(link: &Link, job: &Job, reply: &Value) -> Result<Given, ServedError> {
    let fault = |reason: &str| link.http.reply(GENERATE, reason);
    let meta = reply.get("meta_info").ok_or_else(|| fault("it has no meta_info"))?;
    let seen = meta.get("prompt_tokens").and_then(Value::as_u64);
    check::prompt(&job.context, seen.ok_or_else(|| fault("it does not count the prompt's tokens"))?, None)?;
    let scored = meta.get("output_token_logprobs").and_then(Value::as_array);
    let scored = scored.ok_or_else(|| fault("it has no log-probabilities"))?;
    let (mut named, mut logprobs) = (Vec::with_capacity(scored.len()), Vec::with_capacity(scored.len()));
    for entry in scored {
        let pair = entry.get(1).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        match (entry.get(0).and_then(logprob), pair) {
            (Some(value), Some(id)) => {
                named.push(id);
                logprobs.push(value);
            }
            _ => return Err(fault("an entry of output_token_logprobs is no pair of log-probability and id")),
        }
    }
    let counted = meta.get("completion_tokens").and_then(Value::as_u64);
    let tokens = match reply.get("output_ids").filter(|ids| !ids.is_null()) {
        Some(list) => ids(Some(list)).ok_or_else(|| fault("its output_ids are no ids"))?,
        None => named.clone(),
    };
    let count = counted.and_then(|count| usize::try_from(count).ok()).unwrap_or(tokens.len());
    if tokens.len() != named.len() || count != named.len() {
        return Err(ServedError::Counts { tokens: tokens.len().max(count), logprobs: named.len() });
    }
    if let Some((at, (id, other))) = tokens.iter().zip(&named).enumerate().find(|(_, (id, other))| id != other) {
        return Err(ServedError::Mismatch { at, id: *id, other: other.to_string() });
    }
    let reason = match meta.pointer("/finish_reason/type").and_then(Value::as_str) {
        Some("stop") => Reason::Stop,
        Some("length") => Reason::Length,
        other => return Err(fault(&format!("it ended for the reason {other:?}"))),
    };
    // At other temperatures it depends on how the server was started which distribution it reports.
    let score = if job.is_plain() { Score::Own } else { Score::Unknown };
    check::finish(&link.chat, job, tokens, logprobs, score, reason)
}
