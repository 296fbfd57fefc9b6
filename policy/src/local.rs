//! The sampler over a local decoder.

use crate::completion::{self, Growing, Stops};
use crate::forward::{Network, Rows};
use crate::gguf::Gguf;
use crate::kv::{Cache, CachedAttend, Segment, common};
use crate::laid_out::LaidOut;
use crate::ops::{BlockShape, TOKENS};
use crate::parallel::awake;
use crate::pool::Pool;
use crate::sample::{Completion, Identity, Policy, Request};
use crate::{Chat, Config, Decoder, PolicyError, ops, sampling, side_by_side};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A row waits for another's pass for no fewer shared tokens than this; it rather computes them itself.
const WORTH_WAITING: usize = 16;

/// Tokens that rows are given between two looks at which of them have ended.
const STRIDE: usize = 32;

/// Fewer rows than this are not worth a thread of their own.
const ROWS_PER_THREAD: usize = 4;

/// With so many rows for each thread their products take longer than the weights take to come from memory: each thread may then
/// read all weights for itself.
const ROWS_PER_READING: usize = 32;

/// Weights, in numbers, that stay in a core's cache from step to step.
const IN_CACHE: usize = 4 << 20;

/// What the sampler may use. It changes speed, never results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that all key-value caches together may take, what several share counted once; one row is always allowed what it
    /// needs.
    pub cache_bytes: usize,
    /// Tokens of contexts that one pass takes.
    pub prefill_tokens: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { cache_bytes: 1 << 30, prefill_tokens: 2048 }
    }
}

/// Bytes of keys and values that a policy holds, what several rows share counted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUse {
    /// Now.
    pub held: usize,
    /// At most so far.
    pub most: usize,
}

/// A decoder with its tokenizer, as a [`Policy`].
///
/// A completion is a function of the weights, the context, the sampler settings and the key. Caches, their eviction, the rest
/// of the batch and the number of threads decide only how fast it comes.
pub struct LocalPolicy {
    config: Config,
    weights: Weights,
    chat: Chat,
    identity: Identity,
    limits: Limits,
    stops: Stops,
    pool: Pool,
    shape: BlockShape,
    calls: u64,
}

/// The weights, until the first completion as they were given, then laid out for sampling.
enum Weights {
    Given(Box<Decoder>),
    LaidOut(Box<LaidOut>),
    /// A change of the layout failed half-way.
    Lost,
}

impl LocalPolicy {
    /// Reads a model folder (`config.json`, `tokenizer.json`, `model.safetensors` or its shards, and if there is one the chat
    /// template) or a GGUF file; the policy is named after it.
    ///
    /// # Errors
    /// When a file is missing or unreadable, or the files do not fit together.
    pub fn load(path: &Path, limits: Limits) -> Result<Self, PolicyError> {
        let name = path.file_name().map_or_else(|| "local".to_owned(), |name| name.to_string_lossy().into_owned());
        if path.is_file() {
            let mut file = Gguf::open(path)?;
            let chat = file.chat()?;
            return Self::new(&name, file.decoder()?, chat, limits);
        }
        Self::new(&name, Decoder::load(path)?, Chat::load(path)?, limits)
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
        let (config, stops) = (decoder.config().clone(), Stops::default());
        let shape = BlockShape { layers: config.layers, heads: decoder.network().heads() };
        let (pool, weights) = (Pool::new(limits.cache_bytes, shape), Weights::Given(Box::new(decoder)));
        Ok(Self { config, weights, chat, identity, limits, stops, pool, shape, calls: 0 })
    }

    /// The same policy, whose completions also end where `stops` says.
    #[must_use]
    pub fn with_stops(mut self, stops: Stops) -> Self {
        self.stops = stops;
        self
    }

    /// The tokenizer and chat format.
    pub fn chat(&self) -> &Chat {
        &self.chat
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The same policy with other limits; its caches are dropped.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, pool: Pool::new(limits.cache_bytes, self.shape), ..self }
    }

    /// What its caches take.
    pub fn cache_use(&self) -> CacheUse {
        let (ledger, bytes) = (self.pool.ledger(), self.shape.bytes());
        CacheUse { held: ledger.held() * bytes, most: ledger.most() * bytes }
    }

    /// Gives the decoder back; caches are dropped.
    ///
    /// # Errors
    /// When memory for the tensors cannot be had.
    pub fn into_decoder(self) -> Result<Decoder, PolicyError> {
        match self.weights {
            Weights::Given(decoder) => Ok(*decoder),
            Weights::LaidOut(weights) => weights.into_decoder(),
            Weights::Lost => Err(lost()),
        }
    }

    /// Lays the weights out for sampling, once.
    fn lay_out(&mut self) -> Result<(), PolicyError> {
        if matches!(self.weights, Weights::Given(_))
            && let Weights::Given(decoder) = std::mem::replace(&mut self.weights, Weights::Lost)
        {
            self.weights = Weights::LaidOut(Box::new(LaidOut::new(*decoder)?));
        }
        Ok(())
    }

    fn network(&self) -> Result<&Network, PolicyError> {
        match &self.weights {
            Weights::Given(decoder) => Ok(decoder.network()),
            Weights::LaidOut(weights) => Ok(weights.network()),
            Weights::Lost => Err(lost()),
        }
    }

    /// Cuts a batch, in the order of contexts, into parts that fit the cache bound, none holding a row twice.
    fn parts<'a, 'b>(&self, batch: &'a [Request<'b>]) -> Vec<Vec<(usize, &'a Request<'b>)>> {
        let mut order: Vec<_> = batch.iter().enumerate().collect();
        // Then a row shares more with the one before than with any other before it.
        order.sort_by(|(_, a), (_, b)| a.context.cmp(b.context));
        let (mut parts, mut blocks, mut rows) = (Vec::<Vec<_>>::new(), 0, BTreeSet::new());
        for (at, request) in order {
            let before = parts.last().and_then(|part| part.last()).map(|(_, request)| *request);
            let own = blocks_of_its_own(request, before);
            match parts.last_mut() {
                Some(part) if blocks + own <= self.pool.blocks() && !rows.contains(&request.row) => {
                    part.push((at, request));
                    blocks += own;
                }
                _ => {
                    parts.push(vec![(at, request)]);
                    blocks = blocks_of_its_own(request, None);
                    rows.clear();
                }
            }
            rows.insert(request.row);
        }
        parts
    }

    /// Completes the requests of a part; each completion goes to its place in `done`.
    fn complete(&mut self, part: &[(usize, &Request<'_>)], done: &mut [Option<Completion>]) -> Result<(), PolicyError> {
        let mut live: Vec<Live<'_>> = part.iter().map(|(at, request)| Live::new(*at, request)).collect();
        live.retain(|row| match row.growing.stop {
            Some(_) => {
                done[row.at] = Growing::new(row.request).finish();
                false
            }
            None => true,
        });
        self.prefill(&mut live)?;
        // Rows that still share a last block part from it here, one after the other, so that none copies it for nothing.
        live.iter_mut().for_each(|row| row.cache.make_room(1, self.shape, self.pool.ledger()));
        while !live.is_empty() {
            self.advance(&mut live)?;
            for row in live.extract_if(.., |row| row.growing.stop.is_some()) {
                self.pool.put(row.request.row, row.cache, self.calls);
                done[row.at] = row.growing.finish();
            }
        }
        self.pool.shrink(0);
        Ok(())
    }

    /// Brings the live rows' caches to their contexts, as far as is worth a pass of its own: what no other row waits for and fits
    /// one pass is left to the first step, which needs the weights anyway.
    ///
    /// From the first [`share`] on, of what neighbours have in common they hold the same, in the same blocks, but for what a
    /// row computes itself instead of waiting: so no row comes to hold more blocks than [`blocks_of_its_own`] says.
    fn prefill(&mut self, live: &mut [Live<'_>]) -> Result<(), PolicyError> {
        for row in live.iter_mut() {
            row.cache = self.pool.take(row.request.row).unwrap_or_default();
            // Never trust: the tokens decide what of a cache holds.
            row.cache.truncate(row.cache.common(row.prompt()));
        }
        for row in live.iter_mut() {
            if let Some(cache) = self.pool.beginning(row.prompt(), row.cache.tokens().len()) {
                row.cache = cache;
            }
            row.cache.touch(self.calls);
        }
        share(live);
        self.pool.shrink(blocks_to_come(live));
        loop {
            let wave = wave(live);
            let missing = live.iter().filter(|row| row.missing() > 0).count();
            let tokens = live.iter().map(|row| row.missing() + 1).sum::<usize>();
            if wave.is_empty() || (wave.len() == missing && tokens <= self.limits.prefill_tokens) {
                return Ok(());
            }
            self.fill(live, &wave)?;
            share(live);
        }
    }

    /// Runs the missing context tokens of the rows in `wave`, as many a pass as the limit allows.
    fn fill(&self, live: &mut [Live<'_>], wave: &[usize]) -> Result<(), PolicyError> {
        loop {
            let mut budget = self.limits.prefill_tokens.max(1);
            let mut work = Vec::new();
            for (_, row) in live.iter_mut().enumerate().filter(|(at, _)| wave.contains(at)) {
                let prompt = row.prompt();
                let from = row.cache.tokens().len();
                let to = prompt.len().min(from + budget);
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
            rows.positions.extend((0..new.len()).map(|i| cache.tokens().len() + i));
            if want_logits {
                rows.wanted.push(rows.ids.len() - 1);
            }
            segments.push(Segment { cache, rows: new.len() });
            tokens.push(new);
        }
        let network = self.network()?;
        let mut attend = CachedAttend::new(&mut segments, self.shape, self.pool.ledger());
        let hidden = network.hidden(&rows, &mut attend, None)?;
        for (segment, new) in segments.iter_mut().zip(tokens) {
            segment.cache.extend(new);
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

    /// Gives every live row up to [`STRIDE`] tokens. With several threads, either they share each product, so that the weights
    /// are read once for all rows; or each takes rows of its own and runs its steps alone: where there are so many rows that
    /// the reading costs nothing, and where the weights stay in the caches of every core and a step has too little work to
    /// share. No row's result depends on which others are with it.
    fn advance(&self, live: &mut [Live<'_>]) -> Result<(), PolicyError> {
        let enough = live.len() >= ROWS_PER_READING * rayon::current_num_threads();
        if !enough && self.config.parameters() > IN_CACHE {
            return awake(|| self.steps(live));
        }
        let groups = rayon::current_num_threads().min(live.len() / ROWS_PER_THREAD).max(1);
        if groups == 1 {
            return self.steps(live);
        }
        let groups: Vec<Mutex<&mut [Live<'_>]>> =
            live.chunks_mut(live.len().div_ceil(groups)).map(Mutex::new).collect();
        let results = side_by_side(groups.len(), |at| match groups.get(at) {
            Some(rows) => self.steps(&mut rows.lock().unwrap_or_else(PoisonError::into_inner)),
            None => Ok(()),
        });
        results.into_iter().collect()
    }

    fn steps(&self, live: &mut [Live<'_>]) -> Result<(), PolicyError> {
        for _ in 0..STRIDE {
            let mut going: Vec<&mut Live<'_>> = live.iter_mut().filter(|row| row.growing.stop.is_none()).collect();
            if going.is_empty() {
                break;
            }
            self.step(&mut going)?;
        }
        Ok(())
    }

    /// Feeds every row what it has not read yet, in the first step the rest of its context, and draws the next token.
    fn step(&self, live: &mut [&mut Live<'_>]) -> Result<(), PolicyError> {
        use rayon::prelude::*;
        let width = self.config.vocab_size;
        let pending: Vec<Vec<u32>> = live.iter().map(|row| row.pending().to_vec()).collect();
        let keys: Vec<_> = live
            .iter()
            .map(|row| (row.request.row, row.request.sampler, row.request.key, row.growing.tokens.len()))
            .collect();
        let mut drawn = Vec::new();
        let work = live.iter_mut().zip(&pending).map(|(row, new)| (&mut row.cache, new.as_slice())).collect();
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
            row.growing.take(id, logprob, &self.chat, &self.stops);
        }
        Ok(())
    }
}

fn lost() -> PolicyError {
    PolicyError::Weights { reason: "they were lost when laying them out failed; load the policy again".to_owned() }
}

/// A row that is being completed.
struct Live<'a> {
    at: usize,
    request: &'a Request<'a>,
    cache: Cache,
    growing: Growing,
}

impl<'a> Live<'a> {
    fn new(at: usize, request: &'a Request<'a>) -> Self {
        Self { at, request, cache: Cache::default(), growing: Growing::new(request) }
    }

    fn prompt(&self) -> &'a [u32] {
        prompt(self.request)
    }

    /// The tokens that its cache does not hold yet: at least one.
    fn pending(&self) -> &[u32] {
        match self.growing.tokens.last_chunk::<1>() {
            Some(last) => last,
            None => self.request.context.get(self.cache.tokens().len()..).unwrap_or_default(),
        }
    }

    /// Context tokens that its cache does not hold yet, but for the last.
    fn missing(&self) -> usize {
        self.prompt().len().saturating_sub(self.cache.tokens().len())
    }
}

/// Blocks that a row comes to hold at most, those left out that it shares with the row before in the order of contexts.
fn blocks_of_its_own(request: &Request<'_>, before: Option<&Request<'_>>) -> usize {
    let longest = request.context.len() + Growing::new(request).room();
    let shared = before.map_or(0, |before| common(prompt(before), prompt(request)));
    // What it may compute itself instead of waiting for it.
    BlockShape::blocks(longest) - shared.saturating_sub(WORTH_WAITING - 1) / TOKENS
}

/// Blocks that the rows may come to need beyond those that they hold.
fn blocks_to_come(live: &[Live<'_>]) -> usize {
    let own = |(at, row): (usize, &Live<'_>)| {
        let before = at.checked_sub(1).and_then(|before| live.get(before));
        blocks_of_its_own(row.request, before.map(|row| row.request))
    };
    let held = live.iter().flat_map(|row| row.cache.blocks().iter().map(|block| Arc::as_ptr(block).addr()));
    let held = held.collect::<BTreeSet<_>>().len();
    // A last block that a row shares with the pool is copied.
    (live.iter().enumerate().map(own).sum::<usize>() + live.len()).saturating_sub(held)
}

/// Lets neighbours in the order of contexts, and so all rows, share what any of them holds of what they have in common.
fn share(live: &mut [Live<'_>]) {
    for at in 1..live.len() {
        if let Ok([before, row]) = live.get_disjoint_mut([at - 1, at]) {
            row.cache.share(&before.cache, prompt(row.request));
        }
    }
    for at in (1..live.len()).rev() {
        if let Ok([row, after]) = live.get_disjoint_mut([at - 1, at]) {
            row.cache.share(&after.cache, prompt(row.request));
        }
    }
}

/// Rows, in the order of contexts, with missing context, leaving for later those that can take much of it from the row before.
fn wave(live: &[Live<'_>]) -> Vec<usize> {
    let waits = |at: usize, row: &Live<'_>| {
        let before = at.checked_sub(1).and_then(|before| live.get(before));
        let shared = before.map_or(0, |before| common(before.prompt(), row.prompt()));
        shared >= row.cache.tokens().len() + WORTH_WAITING
    };
    let missing = live.iter().enumerate().filter(|(_, row)| row.missing() > 0);
    missing.filter(|(at, row)| !waits(*at, row)).map(|(at, _)| at).collect()
}

/// The context without its last token: what can be cached before the first step.
fn prompt<'a>(request: &Request<'a>) -> &'a [u32] {
    request.context.split_last().map_or(&[], |(_, prompt)| prompt)
}

impl Policy for LocalPolicy {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn sample(&mut self, batch: &[Request<'_>]) -> Result<Vec<Completion>, PolicyError> {
        let vocab_size = self.config.vocab_size;
        batch.iter().try_for_each(|request| completion::check(request, vocab_size))?;
        self.lay_out()?;
        // On a thread of the pool from the start: to hand over every product from outside would cost more than the product.
        rayon::scope(|_| {
            let mut done = vec![None; batch.len()];
            for part in self.parts(batch) {
                self.calls += 1;
                self.complete(&part, &mut done)?;
            }
            Ok(done.into_iter().flatten().collect())
        })
    }

    fn release(&mut self, row: u64) {
        self.pool.retire(row);
    }
}
