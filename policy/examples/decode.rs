//! Decoding speed of a model: `cargo run --release --ignore-rust-version -p rao-policy --example decode -- MODEL [ROWS] [PROMPT] [TOKENS]`.
//!
//! MODEL is a folder or a GGUF file, PROMPT the length of the beginning that all rows share, in tokens. Prints tokens per
//! second of wall time with one thread and with all, and the time to the first token with a cold and with a warm beginning.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measuring program stops at the first fault and prints"
)]

use rao_policy::{Limits, LocalPolicy, Policy, Request, SampleKey, Sampler};
use std::path::Path;
use std::time::Instant;

fn contexts(rows: usize, prompt: usize, vocab_size: usize) -> Vec<Vec<u32>> {
    let id = |seed: usize| (seed.wrapping_mul(2_654_435_761) >> 7) as u32 % vocab_size as u32;
    let shared: Vec<u32> = (0..prompt).map(id).collect();
    (0..rows).map(|row| shared.iter().copied().chain((0..8).map(|i| id(9999 * (row + 1) + i))).collect()).collect()
}

/// Seconds that the rows take, and tokens that they get.
fn run(policy: &mut LocalPolicy, contexts: &[Vec<u32>], tokens: u32) -> (f64, usize) {
    let requests: Vec<Request<'_>> = contexts
        .iter()
        .enumerate()
        .map(|(row, context)| Request {
            row: row as u64,
            context,
            sampler: Sampler::whole(1.0, tokens),
            window: u32::MAX,
            key: SampleKey([row as u8; 32]),
        })
        .collect();
    let start = Instant::now();
    let completions = policy.sample(&requests).unwrap();
    (start.elapsed().as_secs_f64(), completions.iter().map(|c| c.tokens.len()).sum())
}

fn main() {
    let mut args = std::env::args().skip(1);
    let model = args.next().unwrap();
    let mut number = |default: usize| args.next().map_or(default, |text| text.parse().unwrap());
    let (rows, prompt, tokens) = (number(32), number(64), number(32));
    let threads = std::thread::available_parallelism().unwrap().get();
    for threads in [1, threads] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut policy = LocalPolicy::load(Path::new(&model), Limits::default()).unwrap();
            let contexts = contexts(rows, prompt, policy.chat().vocab_size());
            run(&mut policy, &contexts, 1);
            let (seconds, count) = run(&mut policy, &contexts, tokens as u32);
            println!("threads {threads}  rows {rows}  decode {:.1} tokens/s ({count} in {seconds:.2} s)", count as f64 / seconds);
            let mut policy = LocalPolicy::load(Path::new(&model), Limits::default()).unwrap();
            let cold = run(&mut policy, &contexts[..1], 1).0;
            policy.release(0);
            let warm = run(&mut policy, &contexts[1..2], 1).0;
            println!("threads {threads}  first token after {prompt} shared tokens: cold {cold:.3} s, warm {warm:.3} s ({:.3} x)", warm / cold);
        });
    }
}
