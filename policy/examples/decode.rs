//! Decoding speed of a model: `cargo run --release --ignore-rust-version -p rao-policy --example decode -- MODEL [ROWS] [PROMPT] [TOKENS] [THREADS]`.
//!
//! MODEL is a folder or a GGUF file, PROMPT the length of the beginning that all rows share, in tokens. Prints,
//! as JSON, with one thread and with all or with so many: tokens per second of wall time and per second of processor time, and the time to the first
//! token with a cold and with a warm beginning.
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

/// Seconds to the first token of a context whose beginning nothing has read, and of another one with the same beginning.
fn first_token(policy: &mut LocalPolicy, contexts: &[Vec<u32>]) -> [f64; 2] {
    [0, 1].map(|at| {
        let seconds = run(policy, &contexts[at..=at], 1).0;
        policy.release(0);
        seconds
    })
}

fn main() {
    let mut args = std::env::args().skip(1);
    let model = args.next().unwrap();
    let mut number = |default: usize| args.next().map_or(default, |text| text.parse().unwrap());
    let (rows, prompt, tokens) = (number(32), number(64), number(32));
    let all = std::thread::available_parallelism().unwrap().get();
    let threads = number(0);
    for threads in if threads == 0 { vec![1, all] } else { vec![threads] } {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut policy = LocalPolicy::load(Path::new(&model), Limits::default()).unwrap();
            let vocabulary = policy.chat().vocab_size();
            let batch = contexts(rows, prompt, vocabulary);
            run(&mut policy, &batch, 1);
            let cpu = cpu_seconds();
            let (seconds, count) = run(&mut policy, &batch, tokens as u32);
            let cpu = cpu_seconds() - cpu;
            let others = contexts(4, prompt, vocabulary).into_iter().map(|context| {
                // Another beginning than the batch's.
                context.iter().map(|id| (id + 1) % vocabulary as u32).collect()
            });
            let [cold, warm] = first_token(&mut policy, &others.collect::<Vec<_>>());
            println!(
                "{}",
                serde_json::json!({
                    "threads": threads, "rows": rows, "shared": prompt, "tokens": count,
                    "per_second": count as f64 / seconds, "per_cpu_second": count as f64 / cpu,
                    "first_token_cold": cold, "first_token_warm": warm, "warm_by_cold": warm / cold,
                    "cache_mib": policy.cache_use().most as f64 / f64::from(1 << 20), "peak_mib": peak_mib(),
                })
            );
        });
    }
}

/// Processor seconds of the process so far.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = after_name[11].parse::<f64>().unwrap() + after_name[12].parse::<f64>().unwrap();
    ticks / 100.0
}

/// Peak memory of the process in MiB.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}
