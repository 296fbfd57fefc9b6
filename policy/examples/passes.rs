//! Forward and backward passes of the shapes that `benches/torch` compares with PyTorch. Prints JSON.
//!
//! `passes SHAPE BATCH LENGTH`, with SHAPE micro, tiny or smol; RAYON_NUM_THREADS sets the number of threads. With more than one
//! thread, the batch is split into as many micro-batches and these run side by side, as the trainer does.

use rao_policy::{Architecture, Config, Decoder, Packed, PackedSequence, PassOptions, PolicyError, side_by_side};
use std::time::Instant;

fn config(shape: &str) -> Option<Config> {
    let (layers, hidden_size, heads, kv_heads, intermediate_size, vocab_size) = match shape {
        "micro" => (2, 128, 4, 2, 344, 256),
        "tiny" => (4, 256, 4, 2, 688, 1024),
        "smol" => (30, 576, 9, 3, 1536, 49152),
        _ => return None,
    };
    let json = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": vocab_size, "hidden_size": hidden_size,
        "intermediate_size": intermediate_size, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
        "max_position_embeddings": 2048,
    });
    Config::from_json(json.to_string().as_bytes()).ok().filter(|c| c.architecture == Architecture::Llama)
}

fn batch(vocabulary: usize, sequences: usize, length: usize, seed: usize) -> Packed {
    let id = |at: usize, t: usize| ((t * 7919 + (at + seed * 64) * 104_729 + t * t * 31) % vocabulary) as u32;
    let sequence =
        |at| PackedSequence { tokens: (0..length).map(|t| id(at, t)).collect(), targets: (1..length).collect() };
    Packed { sequences: (0..sequences).map(sequence).collect() }
}

/// CPU seconds that this process has used, from Linux's `/proc`; its clock ticks 100 times a second.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .map(|f| f.parse().unwrap_or(0.0))
        .collect();
    (fields.get(11).unwrap_or(&f64::NAN) + fields.get(12).unwrap_or(&f64::NAN)) / 100.0
}

fn measure(units: usize, run: impl Fn() -> Result<(), PolicyError>) -> Result<serde_json::Value, PolicyError> {
    run()?;
    let (mut best, mut repeats, begin, cpu) = (0f64, 0, Instant::now(), cpu_seconds());
    while repeats < 3 || begin.elapsed().as_secs_f64() < 3.0 {
        let start = Instant::now();
        run()?;
        best = best.max(units as f64 / start.elapsed().as_secs_f64());
        repeats += 1;
    }
    let per_cpu_second = (units * repeats) as f64 / (cpu_seconds() - cpu);
    Ok(serde_json::json!({ "per_cpu_second": per_cpu_second, "per_second": best }))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [shape, sequences, length] = args.as_slice() else { return Err("give SHAPE BATCH LENGTH".into()) };
    let (sequences, length): (usize, usize) = (sequences.parse()?, length.parse()?);
    let config = config(shape).ok_or("SHAPE is micro, tiny or smol")?;
    let decoder = Decoder::init(config.clone(), 1)?;
    let lanes = rayon::current_num_threads().min(sequences);
    let parts: Vec<Packed> = (0..lanes).map(|lane| batch(config.vocab_size, sequences / lanes, length, lane)).collect();
    let units = parts.iter().map(Packed::tokens).sum();
    let each = |run: &(dyn Fn(&Packed) -> Result<(), PolicyError> + Sync)| -> Result<(), PolicyError> {
        match parts.as_slice() {
            [one] => run(one),
            many => side_by_side(many.len(), |at| run(&many[at])).into_iter().collect(),
        }
    };
    let forward = measure(units, || each(&|packed| decoder.score(packed, false).map(drop)))?;
    let backward = measure(units, || {
        each(&|packed| {
            let pass = decoder.pass_with(packed, PassOptions::default())?;
            pass.gradients(&vec![-1.0 / packed.targets() as f32; packed.targets()], None).map(drop)
        })
    })?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    let peak_mib = peak.map(|kib| kib / 1024.0);
    println!("{}", serde_json::json!({ "forward": forward, "backward": backward, "peak_mib": peak_mib }));
    Ok(())
}
