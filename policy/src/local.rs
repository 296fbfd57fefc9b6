//! The sampler over a local decoder.

use crate::forward::Rows;
use crate::kv::{Cache, CachedAttend, Segment};
use crate::sample::{Completion, Identity, Policy, Request, Stop};
use crate::{Chat, Decoder, PolicyError, files, ops, sampling};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The text that ends a completion.
const CELL_END: &[u8] = b"</python>";

/// A shared beginning shorter than this is computed again instead of copied.
const WORTH_SHARING: usize = 16;

/// At most so many rows of a wave are compared with a new one for a shared beginning.
const COMPARED: usize = 16;

/// What the sampler may use. It changes speed, never results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that all key-value caches together may take; one row is always allowed what it needs.
    pub cache_bytes: usize,
    /// Tokens of contexts that one pass takes.
    pub prefill_tokens: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { cache_bytes: 1 << 30, prefill_tokens: 2048 }
    }
}

/// A decoder with its tokenizer, as a [`Policy`].
///
/// A completion is a function of the weights, the context, the sampler settings and the key. Caches, their eviction, the rest
/// of the batch and the number of threads decide only how fast it comes.
pub struct LocalPolicy {
    decoder: Decoder,
    chat: Chat,
    identity: Identity,
    limits: Limits,
    caches: BTreeMap<u64, Cache>,
    calls: u64,
}

impl LocalPolicy {
    /// Reads a model folder (`config.json`, `tokenizer.json`, `model.safetensors`); the policy is named after it.
    ///
    /// # Errors
    /// When a file is missing or unreadable, or the files do not fit together.
    pub fn load(dir: &Path, limits: Limits) -> Result<Self, PolicyError> {
        let name = dir.file_name().map_or_else(|| "local".to_owned(), |name| name.to_string_lossy().into_owned());
        let decoder = Decoder::load(dir)?;
        Self::new(&name, decoder, Chat::from_bytes(&files::read(dir, "tokenizer.json")?)?, limits)
    }

    /// As [`LocalPolicy::load`], from the contents of the three files.
    ///
    /// # Errors
    /// As [`LocalPolicy::load`].
    pub fn from_bytes(
        name: &str,
        config_json: &[u8],
        tokenizer_json: &[u8],
        safetensors: &[u8],
        limits: Limits,
    ) -> Result<Self, PolicyError> {
        let decoder = Decoder::from_bytes(config_json, safetensors)?;
        Self::new(name, decoder, Chat::from_bytes(tokenizer_json)?, limits)
    }

    /// A policy of these weights. It takes the decoder for itself, since its caches hold for these weights only: to sample
    /// while training goes on, give it a [`Decoder::snapshot`].
    ///
    /// # Errors
    /// When the tokenizer has ids that the model has no row for.
    pub fn new(name: &str, decoder: Decoder, chat: Chat, limits: Limits) -> Result<Self, PolicyError> {
        let model = decoder.config().vocab_size;
        if chat.vocab_size() > model {
            return Err(PolicyError::Vocabulary { tokenizer: chat.vocab_size(), model });
        }
        let identity = Identity { name: name.to_owned(), weights: decoder.digest()?, version: decoder.version() };
        Ok(Self { decoder, chat, identity, limits, caches: BTreeMap::new(), calls: 0 })
    }

    /// The tokenizer and chat format.
    pub fn chat(&self) -> &Chat {
        &self.chat
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Gives the decoder back; caches are dropped.
    pub fn into_decoder(self) -> Decoder {
        self.decoder
    }

    fn check(&self, request: &Request<'_>) -> Result<(), PolicyError> {
        let fault = |reason| Err(PolicyError::Input { what: format!("request for row {}", request.row), reason });
        let vocab_size = self.decoder.config().vocab_size;
        if request.context.is_empty() {
            return fault("its context is empty".to_owned());
        }
        if let Some(id) = request.context.iter().find(|id| **id as usize >= vocab_size) {
            return fault(format!("token id {id} is outside the vocabulary of {vocab_size}"));
        }
        if request.sampler.temperature.is_nan() || request.sampler.temperature < 0.0 {
            return fault(format!("temperature {} is not 0 or above", request.sampler.temperature));
        }
        Ok(())
    }

    fn cache_bytes(&self, tokens: usize) -> usize {
        Cache::bytes(tokens, self.decoder.config().layers, self.decoder.network().heads())
    }

    /// Cuts a batch into parts that fit the cache bound, none holding a row twice.
    fn parts<'a, 'b>(&self, batch: &'a [Request<'b>]) -> Vec<&'a [Request<'b>]> {
        let mut parts = Vec::new();
        let (mut start, mut bytes, mut rows) = (0, 0, BTreeSet::new());
        for (at, request) in batch.iter().enumerate() {
            let longest = (request.context.len() + request.sampler.max_tokens as usize)
                .min(request.context.len().max(request.window as usize));
            let needed = self.cache_bytes(longest);
            if at > start && (bytes + needed > self.limits.cache_bytes || rows.contains(&request.row)) {
                parts.push(&batch[start..at]);
                (start, bytes) = (at, 0);
                rows.clear();
            }
            bytes += needed;
            rows.insert(request.row);
        }
        parts.push(&batch[start..]);
        parts
    }

    /// Drops the caches that have gone unused the longest until what is kept and `needed` more bytes fit.
    fn evict(&mut self, needed: usize) {
        let size = |policy: &Self, cache: &Cache| policy.cache_bytes(cache.tokens.len());
        let mut held: usize = self.caches.values().map(|cache| size(self, cache)).sum();
        while held + needed > self.limits.cache_bytes {
            let oldest = self.caches.iter().min_by_key(|(row, cache)| (cache.used, **row)).map(|(row, _)| *row);
            let Some(cache) = oldest.and_then(|row| self.caches.remove(&row)) else { return };
            held -= size(self, &cache);
        }
    }

    fn complete(&mut self, batch: &[Request<'_>]) -> Result<Vec<Completion>, PolicyError> {
        let mut live: Vec<Live<'_>> = batch.iter().enumerate().map(|(at, r)| Live::new(at, r)).collect();
        let mut done: Vec<Option<Completion>> = vec![None; batch.len()];
        settle(&mut live, &mut done, &mut BTreeMap::new());
        self.prefill(&mut live)?;
        let longest = |live: &Live<'_>| live.request.context.len() + live.room();
        let needed = live.iter().map(|live| self.cache_bytes(longest(live))).sum();
        self.evict(needed);
        while !live.is_empty() {
            self.step(&mut live)?;
            settle(&mut live, &mut done, &mut self.caches);
        }
        Ok(done.into_iter().flatten().collect())
    }

    /// Brings every live row's cache to all of its context but the last token.
    fn prefill(&mut self, live: &mut [Live<'_>]) -> Result<(), PolicyError> {
        for row in live.iter_mut() {
            row.cache = self.caches.remove(&row.request.row).unwrap_or_else(|| self.fresh());
            // Never trust: the tokens decide what of a cache holds.
            let common = row.cache.common(row.prompt());
            row.cache.truncate(common);
            row.cache.used = self.calls;
            if let Some((cache, common)) = best(self.caches.values(), row) {
                row.cache = cache.prefix(common, self.decoder.config().head_dim);
                row.cache.used = self.calls;
            }
        }
        loop {
            let wave = wave(live);
            if wave.is_empty() {
                return Ok(());
            }
            self.fill(live, &wave)?;
            let (dim, calls) = (self.decoder.config().head_dim, self.calls);
            for at in 0..live.len() {
                let donors = wave.iter().map(|donor| &live[*donor].cache);
                if let Some((cache, common)) = best(donors, &live[at]) {
                    live[at].cache = cache.prefix(common, dim);
                    live[at].cache.used = calls;
                }
            }
        }
    }

    fn fresh(&self) -> Cache {
        Cache::new(self.decoder.config().layers, self.decoder.config().kv_heads)
    }

    /// Runs the missing context tokens of the rows in `wave`, as many a pass as the limit allows.
    fn fill(&self, live: &mut [Live<'_>], wave: &[usize]) -> Result<(), PolicyError> {
        loop {
            let mut budget = self.limits.prefill_tokens.max(1);
            let mut work = Vec::new();
            for (_, row) in live.iter_mut().enumerate().filter(|(at, _)| wave.contains(at)) {
                let prompt = row.prompt();
                let (from, to) = (row.cache.tokens.len(), prompt.len().min(row.cache.tokens.len() + budget));
                if from < to {
                    budget -= to - from;
                    work.push((&mut row.cache, &prompt[from..to]));
                }
            }
            if work.is_empty() {
                return Ok(());
            }
            self.pass(work, false, |_| Ok(()))?;
        }
    }

    /// One pass over new tokens of some caches; `logits` gets `[rows, vocabulary]` of each cache's last new token if wanted.
    fn pass(
        &self,
        work: Vec<(&mut Cache, &[u32])>,
        want_logits: bool,
        logits: impl FnOnce(&[f32]) -> Result<(), PolicyError>,
    ) -> Result<(), PolicyError> {
        let mut rows = Rows { ids: Vec::new(), positions: Vec::new(), wanted: Vec::new() };
        let (mut segments, mut tokens) = (Vec::new(), Vec::new());
        for (cache, new) in work {
            rows.ids.extend(new.iter().map(|id| *id as usize));
            rows.positions.extend((0..new.len()).map(|i| cache.tokens.len() + i));
            if want_logits {
                rows.wanted.push(rows.ids.len() - 1);
            }
            segments.push(Segment { cache, rows: new.len() });
            tokens.push(new);
        }
        let network = self.decoder.network();
        let hidden = network.hidden(&rows, &mut CachedAttend { segments: &mut segments }, None)?;
        for (segment, new) in segments.iter_mut().zip(tokens) {
            segment.cache.tokens.extend_from_slice(new);
        }
        if !want_logits {
            return Ok(());
        }
        let all = ops::linear(&hidden, network.head())?;
        let mut result = Ok(());
        ops::with_numbers([&all], "sampling", |[all]| {
            result = logits(all);
            Ok(())
        })?;
        result
    }

    /// Feeds every live row its last token and draws the next.
    fn step(&self, live: &mut [Live<'_>]) -> Result<(), PolicyError> {
        use rayon::prelude::*;
        let width = self.decoder.config().vocab_size;
        let last: Vec<[u32; 1]> = live.iter().map(Live::last).collect();
        let keys: Vec<_> =
            live.iter().map(|row| (row.request.row, row.request.sampler, row.request.key, row.tokens.len())).collect();
        let mut drawn = Vec::new();
        let work = live.iter_mut().zip(&last).map(|(row, last)| (&mut row.cache, last.as_slice())).collect();
        self.pass(work, true, |logits| {
            let rows = logits.par_chunks(width).zip(&keys).with_min_len(8);
            drawn = rows
                .map(|(logits, (row, sampler, key, index))| {
                    sampling::draw(logits, *sampler, *key, *index)
                        .ok_or_else(|| PolicyError::NonFinite { what: format!("row {row}, token {index}") })
                })
                .collect::<Result<_, _>>()?;
            Ok(())
        })?;
        for (row, (id, logprob)) in live.iter_mut().zip(drawn) {
            row.take(id, logprob, &self.chat);
        }
        Ok(())
    }
}

/// A row that is being completed.
struct Live<'a> {
    at: usize,
    request: &'a Request<'a>,
    cache: Cache,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    /// The last bytes of the completion's text, enough to see the end text across tokens.
    tail: Vec<u8>,
    stop: Option<Stop>,
}

impl<'a> Live<'a> {
    fn new(at: usize, request: &'a Request<'a>) -> Self {
        let (tokens, logprobs, tail) = (Vec::new(), Vec::new(), Vec::new());
        let mut live = Self { at, request, cache: Cache::default(), tokens, logprobs, tail, stop: None };
        live.stop = live.limit();
        live
    }

    /// The context without its last token: what can be cached before the first step.
    fn prompt(&self) -> &'a [u32] {
        self.request.context.split_last().map_or(&[], |(_, prompt)| prompt)
    }

    fn last(&self) -> [u32; 1] {
        [self.tokens.last().or(self.request.context.last()).copied().unwrap_or_default()]
    }

    /// Tokens that it may still have.
    fn room(&self) -> usize {
        let window = (self.request.window as usize).saturating_sub(self.request.context.len());
        window.min(self.request.sampler.max_tokens as usize).saturating_sub(self.tokens.len())
    }

    fn limit(&self) -> Option<Stop> {
        if self.tokens.len() >= self.request.sampler.max_tokens as usize {
            Some(Stop::MaxTokens)
        } else if self.request.context.len() + self.tokens.len() >= self.request.window as usize {
            Some(Stop::Window)
        } else {
            None
        }
    }

    fn take(&mut self, id: u32, logprob: f32, chat: &Chat) {
        self.tokens.push(id);
        self.logprobs.push(logprob);
        self.tail.extend_from_slice(chat.token_bytes(id).unwrap_or_default());
        let ended = self.tail.windows(CELL_END.len()).any(|text| text == CELL_END);
        self.tail.drain(..self.tail.len().saturating_sub(CELL_END.len() - 1));
        self.stop = if id == chat.end_of_turn() {
            Some(Stop::EndOfTurn)
        } else if ended {
            Some(Stop::CellEnd)
        } else {
            self.limit()
        };
    }
}

/// Moves ended rows to `done` and their caches to `caches`.
fn settle(live: &mut Vec<Live<'_>>, done: &mut [Option<Completion>], caches: &mut BTreeMap<u64, Cache>) {
    for row in live.extract_if(.., |row| row.stop.is_some()) {
        let Some(stop) = row.stop else { continue };
        caches.insert(row.request.row, row.cache);
        done[row.at] = Some(Completion { tokens: row.tokens, logprobs: row.logprobs, stop });
    }
}

/// The cache that shares the longest beginning with the row's context, if it is worth copying.
fn best<'a>(caches: impl Iterator<Item = &'a Cache>, row: &Live<'_>) -> Option<(&'a Cache, usize)> {
    let (prompt, held) = (row.prompt(), row.cache.tokens.len());
    if prompt.len() < held + WORTH_SHARING {
        return None;
    }
    let common = caches.map(|cache| (cache, cache.common(prompt))).max_by_key(|(_, common)| *common)?;
    (common.1 >= held + WORTH_SHARING).then_some(common)
}

/// Rows with missing context, leaving for later those that can copy much of it from one that comes now.
fn wave(live: &[Live<'_>]) -> Vec<usize> {
    let mut wave: Vec<usize> = Vec::new();
    for (at, row) in live.iter().enumerate() {
        let (prompt, held) = (row.prompt(), row.cache.tokens.len());
        let shares = |other: &usize| {
            let common = live[*other].prompt().iter().zip(prompt).take_while(|(a, b)| a == b).count();
            common >= held + WORTH_SHARING
        };
        if held < prompt.len() && !wave.iter().rev().take(COMPARED).any(shares) {
            wave.push(at);
        }
    }
    wave
}

impl Policy for LocalPolicy {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn sample(&mut self, batch: &[Request<'_>]) -> Result<Vec<Completion>, PolicyError> {
        batch.iter().try_for_each(|request| self.check(request))?;
        let mut all = Vec::with_capacity(batch.len());
        for part in self.parts(batch) {
            self.calls += 1;
            all.extend(self.complete(part)?);
        }
        Ok(all)
    }

    fn release(&mut self, row: u64) {
        self.caches.remove(&row);
    }
}
