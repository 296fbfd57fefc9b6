//! llama.cpp's server: its own completion endpoint, token by token.
//!
//! Two of its habits decide how it is asked (seen in builds of 2026):
//!
//! * With a stop text it gives the stop text's ids without their log-probabilities. So no stop text is sent: the answer is
//!   read as a stream, and the connection is closed at the end of the cell.
//! * A token that ends in the middle of a character has no event and no log-probability of its own. The stream then counts
//!   more tokens than it shows. Such an answer is asked for once more in one piece, where every id stands, and each
//!   missing log-probability is looked up: the server is asked for the distribution after the tokens before it.

use serde_json::{Value, json};

use super::check::{self, CELL_END, Reason};
use super::error::ServedError;
use super::http::More;
use super::{Given, Job, Link, Score, ids, logprob};

pub(super) const PROPS: &str = "/props";
const COMPLETION: &str = "/completion";
/// The most probable tokens that a look-up asks for first; a sampled token is mostly among them.
const FIRST_LOOK: u32 = 256;
/// How much of the echoed settings may differ by being kept in 32 bits.
const ROUNDING: f64 = 1e-6;

/// The request for ids of a text with control tokens in it.
pub(super) fn tokenize(text: &str) -> (&'static str, Value) {
    ("/tokenize", json!({ "content": text, "add_special": false, "parse_special": true }))
}

pub(super) async fn complete(link: &Link, job: &Job) -> Result<Given, ServedError> {
    let mut gathered = Gathered::default();
    let request = request(job, &job.context, job.room(), true);
    link.http.stream(COMPLETION, &request, |event| gathered.take(link, job, &event)).await?;
    let Gathered { tokens, logprobs, hidden, reason } = gathered;
    if hidden {
        return in_one_piece(link, job, tokens, logprobs).await;
    }
    check::finish(&link.chat, job, tokens, logprobs, Score::Own, reason.unwrap_or(Reason::Stop))
}

/// Every sampler that a server's defaults could turn on is turned off. Log-probabilities are of the model's own distribution
/// (`post_sampling_probs` off), whatever the temperature.
fn request(job: &Job, context: &[u32], tokens: usize, stream: bool) -> Value {
    json!({
        "prompt": context,
        "n_predict": tokens,
        "temperature": job.temperature,
        "top_p": job.top_p,
        "samplers": ["temperature", "top_p"],
        "top_k": 0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "dry_multiplier": 0.0,
        "xtc_probability": 0.0,
        "dynatemp_range": 0.0,
        "mirostat": 0,
        "seed": seed(job),
        "ignore_eos": false,
        "cache_prompt": true,
        "n_probs": 1,
        "post_sampling_probs": false,
        "return_tokens": true,
        "stream": stream,
    })
}

/// 32 bits, and never the one that stands for a random seed.
fn seed(job: &Job) -> u64 {
    job.seed() % u64::from(u32::MAX)
}

/// What a stream has given so far.
#[derive(Default)]
struct Gathered {
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    /// Whether the server counted a token that it did not show.
    hidden: bool,
    reason: Option<Reason>,
}

impl Gathered {
    fn take(&mut self, link: &Link, job: &Job, event: &Value) -> Result<More, ServedError> {
        let fault = |reason: &str| link.http.reply(COMPLETION, reason);
        let seen = event.get("tokens_evaluated").and_then(Value::as_u64);
        check::prompt(&job.context, seen.ok_or_else(|| fault("it does not count the prompt's tokens"))?, None)?;
        let tokens = ids(event.get("tokens")).ok_or_else(|| fault("an event has no ids (return_tokens)"))?;
        let (named, logprobs) = scored(link, event)?;
        pair(&tokens, &named)?;
        self.tokens.extend(tokens);
        self.logprobs.extend(logprobs);
        let counted = event.get("tokens_predicted").and_then(Value::as_u64);
        let counted = counted.and_then(|count| usize::try_from(count).ok());
        match counted.ok_or_else(|| fault("it does not count its tokens"))? {
            counted if counted > self.tokens.len() => {
                self.hidden = true;
                return Ok(More::No);
            }
            counted if counted < self.tokens.len() => {
                return Err(ServedError::Length {
                    given: self.tokens.len(),
                    asked: counted,
                    reason: "it counts fewer",
                });
            }
            _ => {}
        }
        if event.get("stop").and_then(Value::as_bool) == Some(true) {
            self.reason = Some(last(link, job, event)?);
            return Ok(More::No);
        }
        let ended = check::first_end(&link.chat, &self.tokens).is_some();
        Ok(if ended { More::No } else { More::Yes })
    }
}

/// Ids and log-probabilities of an answer or of one event.
fn scored(link: &Link, event: &Value) -> Result<(Vec<u32>, Vec<f32>), ServedError> {
    let entries = event.get("completion_probabilities").and_then(Value::as_array);
    let entries = entries.map_or(&[][..], Vec::as_slice);
    let pairs: Option<Vec<(u32, f32)>> = entries.iter().map(entry).collect();
    let pairs = pairs.ok_or_else(|| link.http.reply(COMPLETION, "a log-probability has no id or value"))?;
    Ok(pairs.into_iter().unzip())
}

fn entry(value: &Value) -> Option<(u32, f32)> {
    let id = value.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok())?;
    Some((id, value.get("logprob").and_then(logprob)?))
}

fn pair(tokens: &[u32], named: &[u32]) -> Result<(), ServedError> {
    if tokens.len() != named.len() {
        return Err(ServedError::Counts { tokens: tokens.len(), logprobs: named.len() });
    }
    match tokens.iter().zip(named).enumerate().find(|(_, (id, other))| id != other) {
        Some((at, (id, other))) => Err(ServedError::Mismatch { at, id: *id, other: other.to_string() }),
        None => Ok(()),
    }
}

/// Why the server stopped, and whether it sampled as it was told to.
fn last(link: &Link, job: &Job, event: &Value) -> Result<Reason, ServedError> {
    for (name, wanted) in [("temperature", job.temperature), ("top_p", job.top_p)] {
        let used = event.pointer(&format!("/generation_settings/{name}")).and_then(Value::as_f64);
        if let Some(used) = used.filter(|used| (used - f64::from(wanted)).abs() > ROUNDING) {
            let reason = format!("it sampled with {name} {used}, not {wanted}");
            return Err(link.http.reply(COMPLETION, reason));
        }
    }
    if event.get("truncated").and_then(Value::as_bool) == Some(true) {
        return Err(link.http.reply(COMPLETION, "it cut the context: start it with a larger one"));
    }
    match event.get("stop_type").and_then(Value::as_str) {
        Some("eos" | "word") => Ok(Reason::Stop),
        Some("limit") => Ok(Reason::Length),
        other => Err(link.http.reply(COMPLETION, format!("it ended for the reason {other:?}"))),
    }
}

/// The same answer once more, whole, with every id. What the stream showed is kept as far as it is the same.
async fn in_one_piece(link: &Link, job: &Job, shown: Vec<u32>, known: Vec<f32>) -> Result<Given, ServedError> {
    let mut request = request(job, &job.context, job.room(), false);
    if let Some(fields) = request.as_object_mut() {
        // Here only the ids are taken, and those are whole with a stop text too.
        fields.insert("stop".into(), json!([CELL_END]));
    }
    let answer = link.http.post(COMPLETION, &request).await?;
    let fault = |reason: &str| link.http.reply(COMPLETION, reason);
    let seen = answer.get("tokens_evaluated").and_then(Value::as_u64);
    check::prompt(&job.context, seen.ok_or_else(|| fault("it does not count the prompt's tokens"))?, None)?;
    let mut tokens = ids(answer.get("tokens")).ok_or_else(|| fault("it has no ids (return_tokens)"))?;
    let counted = answer.get("tokens_predicted").and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok());
    if counted != Some(tokens.len()) {
        let asked = counted.unwrap_or_default();
        return Err(ServedError::Length { given: tokens.len(), asked, reason: "its count and its ids differ" });
    }
    let reason = last(link, job, &answer)?;
    if let Some((length, _)) = check::first_end(&link.chat, &tokens) {
        tokens.truncate(length);
    }
    let same = tokens.iter().zip(&shown).take_while(|(a, b)| a == b).count();
    // The event that gave the gap away holds the token behind it, so the last one shown may stand at a later place.
    let sure = same.min(shown.len().saturating_sub(1));
    let mut logprobs: Vec<f32> = known.into_iter().take(sure).collect();
    for at in sure..tokens.len() {
        let value = look_up(link, job, &tokens, at).await?;
        logprobs.push(value);
    }
    check::finish(&link.chat, job, tokens, logprobs, Score::Own, reason)
}

/// The log-probability of one token after those before it, from the server's own list of its distribution.
async fn look_up(link: &Link, job: &Job, tokens: &[u32], at: usize) -> Result<f32, ServedError> {
    let id = tokens.get(at).copied().unwrap_or_default();
    let context: Vec<u32> = job.context.iter().chain(tokens.iter().take(at)).copied().collect();
    let whole = u32::try_from(link.chat.vocab_size()).unwrap_or(u32::MAX);
    for wanted in [FIRST_LOOK.min(whole), whole] {
        let mut request = request(job, &context, 1, false);
        if let Some(fields) = request.as_object_mut() {
            fields.insert("n_probs".into(), wanted.into());
            // A token in the middle of a character would come without its list; the most probable one rarely is such.
            fields.insert("temperature".into(), 0.0.into());
            fields.insert("logit_bias".into(), json!([[link.chat.end_of_turn(), 1e4]]));
        }
        let answer = link.http.post(COMPLETION, &request).await?;
        let top = answer.pointer("/completion_probabilities/0/top_logprobs").and_then(Value::as_array);
        let top = top.map_or(&[][..], Vec::as_slice);
        if let Some((_, value)) = top.iter().filter_map(entry).find(|(other, _)| *other == id) {
            return Ok(value);
        }
    }
    Err(ServedError::Counts { tokens: tokens.len(), logprobs: at })
}
