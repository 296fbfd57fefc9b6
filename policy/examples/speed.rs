//! Speed of the policy that is trained from scratch: forward and backward tokens per second, and decoded tokens per second.
//!
//! `cargo run --release --example speed -p rao-policy`; RAYON_NUM_THREADS sets the number of threads.

use rao_policy::{
    Architecture, Chat, Config, Decoder, Limits, LocalPolicy, Packed, PackedSequence, Policy, PolicyError, Request,
    SampleKey, Sampler, side_by_side,
};
use std::time::Instant;

const CONFIG: Config = Config {
    architecture: Architecture::Qwen3,
    vocab_size: 768,
    hidden_size: 160,
    intermediate_size: 448,
    layers: 3,
    heads: 4,
    kv_heads: 2,
    head_dim: 40,
    rms_norm_eps: 1e-6,
    rope_theta: 10_000.0,
    rope_scaling: rao_policy::RopeScaling::None,
    tie_word_embeddings: true,
    max_positions: 2048,
    experts: None,
};

fn batch(seed: usize, sequences: usize, every: usize) -> Packed {
    let sequence = |at: usize| {
        let len = 130 + (at * 37 + seed * 11) % 71;
        let id = |t: usize| ((t * 7919 + at * 104_729 + seed * 31) % CONFIG.vocab_size) as u32;
        PackedSequence { tokens: (0..len).map(id).collect(), targets: (1..len).step_by(every).collect() }
    };
    Packed { sequences: (0..sequences).map(sequence).collect() }
}

fn gradients(decoder: &Decoder, packed: &Packed) -> Result<(), PolicyError> {
    let pass = decoder.pass(packed)?;
    let slopes = vec![-1.0 / packed.targets() as f32; packed.targets()];
    pass.gradients(&slopes, None).map(drop)
}

/// CPU seconds that this process has used, from Linux's `/proc`; its clock ticks 100 times a second.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0)
}

/// Units per second of the best of several repeats, since other work on the machine only ever slows a run down, and per CPU
/// second over all of them.
fn measure(units: usize, mut run: impl FnMut() -> Result<(), PolicyError>) -> Result<String, PolicyError> {
    let (mut best, mut repeats, begin, cpu) = (0f64, 0, Instant::now(), cpu_seconds());
    while repeats < 5 || begin.elapsed().as_secs_f64() < 2.0 {
        let start = Instant::now();
        run()?;
        best = best.max(units as f64 / start.elapsed().as_secs_f64());
        repeats += 1;
    }
    let used = cpu.zip(cpu_seconds()).map(|(from, to)| (repeats * units) as f64 / (to - from));
    Ok(format!("{best:.0} tok/s ({:.0} per CPU second)", used.unwrap_or(f64::NAN)))
}

fn main() -> Result<(), PolicyError> {
    let decoder = Decoder::init(CONFIG, 1)?;
    println!("{} parameters, {} threads", CONFIG.parameters(), rayon::current_num_threads());
    for every in [1, 2] {
        for sequences in [8, 16] {
            let packed = batch(0, sequences, every);
            let n = packed.tokens();
            println!("{sequences} sequences, {n} tokens, {} targets:", packed.targets());
            println!("  forward       {}", measure(n, || decoder.pass(&packed).map(drop))?);
            println!("  with backward {}", measure(n, || gradients(&decoder, &packed))?);
        }
    }
    let parts: Vec<Packed> = (0..4).map(|seed| batch(seed, 8, 2)).collect();
    let n = parts.iter().map(Packed::tokens).sum();
    println!("4 micro-batches of 8 sequences side by side, {n} tokens, half of them targets:");
    let run = || side_by_side(parts.len(), |at| gradients(&decoder, &parts[at])).into_iter().collect();
    println!("  with backward {}", measure(n, run)?);
    decode(decoder)
}

fn decode(decoder: Decoder) -> Result<(), PolicyError> {
    let mut held = Some(LocalPolicy::new("speed", decoder, Chat::bytes()?, Limits::default())?);
    let shared: Vec<u32> = (0..90).map(|i| i * 7 % 768).collect();
    for rows in [1u64, 8, 64] {
        let contexts: Vec<Vec<u32>> = (0..rows)
            .map(|row| shared.iter().copied().chain((0..40).map(|i| (i * 13 + row as u32 * 17) % 768)).collect())
            .collect();
        let request = |row: u64, max_tokens| Request {
            row,
            context: &contexts[row as usize],
            sampler: Sampler::whole(1.0, max_tokens),
            window: 2048,
            key: SampleKey([row as u8; 32]),
        };
        let batch = |max_tokens| (0..rows).map(|row| request(row, max_tokens)).collect::<Vec<_>>();
        let cold = measure(rows as usize * 130, || {
            // New limits drop the caches, also those of rows that have ended.
            held = held.take().map(|policy| policy.with_limits(Limits::default()));
            held.as_mut().map_or(Ok(()), |policy| policy.sample(&batch(1)).map(drop))
        })?;
        let Some(policy) = &mut held else { return Ok(()) };
        // Rows end at different times in earnest; here all go on, so that every step has all rows.
        let tokens: usize = policy.sample(&batch(64))?.iter().map(|c| c.tokens.len()).sum();
        let warm = measure(tokens, || policy.sample(&batch(64)).map(drop))?;
        println!("{rows} rows:\n  contexts      {cold}\n  decoding      {warm}");
    }
    Ok(())
}
