//! Servers that behave as vLLM, SGLang and llama.cpp do, with a "model" that always says the same.

use serde_json::{Value, json};

use crate::server::{Reply, Request, Server};

/// What the model says.
pub(crate) const SAID: &str = "<thought>t</thought>\n<python>finish('🤖')</python>";

/// Ids of the tokenizer `bytes`.
pub(crate) fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(|byte| 3 + u32::from(byte)).collect()
}

/// The same of a text with control tokens in it.
pub(crate) fn ids_with_control(text: &str) -> Vec<u32> {
    let mut ids_so_far = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("<|im_") {
        ids_so_far.extend(ids(&rest[..at]));
        let (id, length) = if rest[at..].starts_with("<|im_start|>") { (1, 12) } else { (2, 10) };
        ids_so_far.push(id);
        rest = &rest[at + length..];
    }
    ids_so_far.extend(ids(rest));
    ids_so_far
}

/// A log-probability that tells the place of its token.
pub(crate) fn score(at: usize) -> f64 {
    -0.25 - at as f64 / 64.0
}

/// Which server it is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Like {
    Vllm,
    Sglang,
    LlamaCpp,
    Chat,
}

impl Like {
    pub(crate) fn owner(self) -> &'static str {
        match self {
            Like::Vllm => "vllm",
            Like::Sglang => "sglang",
            Like::LlamaCpp => "llamacpp",
            Like::Chat => "someone",
        }
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Like::Vllm => "/v1/completions",
            Like::Sglang => "/generate",
            Like::LlamaCpp => "/completion",
            Like::Chat => "/v1/chat/completions",
        }
    }
}

/// What a server of that kind answers to everything but the request for a completion.
pub(crate) fn about(like: Like, request: &Request) -> Option<Reply> {
    let models = json!({ "object": "list", "data": [{ "id": "/models/tiny.gguf", "owned_by": like.owner(), "max_model_len": 65536 }] });
    match request.path.as_str() {
        "/v1/models" => Some(Reply::json(&models)),
        "/props" => Some(Reply::json(&json!({ "default_generation_settings": { "n_ctx": 65536 }, "total_slots": 3 }))),
        "/tokenize" => {
            let text = request.body["prompt"].as_str().or(request.body["content"].as_str()).unwrap();
            Some(Reply::json(&json!({ "tokens": ids_with_control(text) })))
        }
        _ => None,
    }
}

/// An honest answer that says `text`.
pub(crate) fn honest(like: Like, request: &Request, text: &str) -> Reply {
    match like {
        Like::Vllm => Reply::json(&vllm(request, text)),
        Like::Sglang => Reply::json(&sglang(request, text)),
        Like::LlamaCpp => llamacpp(request, text),
        Like::Chat => {
            let text = text.trim_end_matches("</python>");
            Reply::json(
                &json!({ "choices": [{ "message": { "role": "assistant", "content": text }, "finish_reason": "stop" }] }),
            )
        }
    }
}

pub(crate) fn vllm(request: &Request, text: &str) -> Value {
    let tokens = ids(text);
    let named: Vec<String> = tokens.iter().map(|id| format!("token_id:{id}")).collect();
    let scores: Vec<f64> = (0..tokens.len()).map(score).collect();
    let prompt = &request.body["prompt"];
    json!({
        "choices": [{
            "text": text, "token_ids": tokens, "prompt_token_ids": prompt, "finish_reason": "stop",
            "logprobs": { "tokens": named, "token_logprobs": scores, "text_offset": [], "top_logprobs": [] },
        }],
        "usage": { "prompt_tokens": prompt.as_array().unwrap().len(), "completion_tokens": tokens.len() },
    })
}

pub(crate) fn sglang(request: &Request, text: &str) -> Value {
    let tokens = ids(text);
    let scores: Vec<Value> = tokens.iter().enumerate().map(|(at, id)| json!([score(at), id, null])).collect();
    json!({
        "text": text, "output_ids": tokens,
        "meta_info": {
            "finish_reason": { "type": "stop", "matched": "</python>" },
            "prompt_tokens": request.body["input_ids"].as_array().unwrap().len(),
            "completion_tokens": tokens.len(), "output_token_logprobs": scores,
        },
    })
}

fn entry(at: usize, id: u32) -> Value {
    json!({ "id": id, "token": "", "logprob": score(at), "top_logprobs": [{ "id": 0, "logprob": -9.0 }, { "id": id, "logprob": score(at) }] })
}

/// With the server's own habits: no event for a token inside a character, no log-probabilities for a stop text, and all of a
/// distribution where it is asked for.
pub(crate) fn llamacpp(request: &Request, text: &str) -> Reply {
    let sent: Vec<u64> = request.body["prompt"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let wanted = request.body["n_predict"].as_u64().unwrap();
    let settings = json!({ "temperature": request.body["temperature"], "top_p": request.body["top_p"] });
    let said = ids(text);
    let is_part = wanted == 1;
    let begin = if is_part { said_before(&sent, &said) } else { 0 };
    let tokens: Vec<u32> = if is_part { vec![2] } else { said.iter().take(wanted as usize).copied().collect() };
    let last = json!({
        "index": 0, "content": "", "tokens": [], "stop": true, "stop_type": if tokens.len() as u64 == wanted { "limit" } else { "eos" },
        "tokens_predicted": tokens.len(), "tokens_evaluated": sent.len(), "truncated": false, "generation_settings": settings,
    });
    if request.body["stream"].as_bool() == Some(true) {
        let mut events = Vec::new();
        for (at, id) in tokens.iter().enumerate() {
            let so_far: Vec<u8> = tokens[..=at].iter().map(|id| (id - 3) as u8).collect();
            if std::str::from_utf8(&so_far).is_ok() {
                events.push(json!({
                    "index": 0, "content": "", "tokens": [id], "stop": false, "tokens_predicted": at + 1,
                    "tokens_evaluated": sent.len(), "completion_probabilities": [entry(at, *id)],
                }));
            }
        }
        events.push(last);
        return Reply::Events(events);
    }
    let mut whole = last;
    if is_part {
        // The distribution after what was sent: the next token of what the model says stands in it.
        let next = said.get(begin).copied().unwrap_or(0);
        let mut list = entry(begin, next);
        list["id"] = json!(2);
        whole["completion_probabilities"] = json!([list]);
    }
    whole["tokens"] = json!(tokens);
    whole["tokens_predicted"] = json!(tokens.len());
    Reply::json(&whole)
}

/// How many tokens of what the model says the context ends with.
fn said_before(sent: &[u64], said: &[u32]) -> usize {
    (0..=said.len().min(sent.len()))
        .rev()
        .find(|count| sent[sent.len() - count..].iter().zip(&said[..*count]).all(|(a, b)| *a == u64::from(*b)))
        .unwrap_or(0)
}

/// A server that is honest throughout.
pub(crate) fn honest_server(like: Like, text: &'static str) -> Server {
    Server::start(move |request, _| about(like, request).unwrap_or_else(|| honest(like, request, text)))
}
