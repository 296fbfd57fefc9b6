//! `rao-log init`: a new, untrained policy folder.

use std::path::PathBuf;

use clap::Args;
use rao_policy::{Architecture, Chat, Config, Decoder, TokenizerSpec, train_tokenizer};
use rao_store::event::{Body, Kind};
use rao_store::{EventSource, Filter, RunRole, Seq, Stream, resolve_run};
use serde_json::json;

use crate::shared::args::{JsonArgs, LogArgs, ThreadArgs};
use crate::shared::exit::{Code, Failure};
use crate::shared::open;
use crate::shared::out::Out;

/// Positions of a new model: the default context window.
const POSITIONS: usize = 8192;

/// Make a new policy folder: a byte-level BPE tokenizer trained on a run's texts, and random Qwen3 weights to be trained
/// with `train --loss sft`.
#[derive(Args, Debug)]
pub(crate) struct InitArgs {
    /// The folder to make. It must not exist, or be empty.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The run whose prompts, observations and actions the tokenizer is trained on.
    #[arg(long, value_name = "RUN")]
    from: String,
    /// Entries of the tokenizer at most, the 256 bytes and the special tokens included.
    #[arg(long, value_name = "N", default_value_t = 768, value_parser = clap::value_parser!(u32).range(300..=1_000_000))]
    vocab: u32,
    /// Bytes that a token may have at most.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    token_bytes: u32,
    /// Width of the model.
    #[arg(long, value_name = "N", default_value_t = 160, value_parser = clap::value_parser!(u32).range(8..=65_536))]
    hidden: u32,
    /// Layers.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=512))]
    layers: u32,
    /// Query heads of each layer.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    heads: u32,
    /// Key and value heads of each layer.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    kv_heads: u32,
    /// Width of the feed-forward part.
    #[arg(long, value_name = "N", default_value_t = 448, value_parser = clap::value_parser!(u32).range(8..=262_144))]
    ffn: u32,
    /// Seed of the weights.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command.
pub(crate) fn run(args: &InitArgs, out: &mut Out) -> Result<(), Failure> {
    args.threads.apply();
    check_shape(args)?;
    check_dir(args)?;
    let source = open::reader(&args.log.log)?;
    let run = resolve_run(&source, &args.from, RunRole::Recorded)?;
    let texts = texts(&source, run)?;
    if texts.is_empty() {
        let failure = Failure::new(Code::Incomplete, format!("run {run} holds no text to train a tokenizer on"));
        return Err(
            failure.help("record some rollouts first, such as `rao-log record --policy oracle --tokenizer bytes`")
        );
    }
    let spec = TokenizerSpec { vocab_size: args.vocab as usize, max_token_bytes: args.token_bytes as usize };
    let tokenizer = train_tokenizer(texts.iter().map(String::as_str), spec)?;
    let chat = Chat::from_bytes(&tokenizer)?;
    let decoder = Decoder::init(config(args, chat.vocab_size()), args.seed)?;
    decoder.save(&args.dir)?;
    chat.save(&args.dir)?;
    report(args, out, &chat, &decoder)
}

fn check_shape(args: &InitArgs) -> Result<(), Failure> {
    if !args.hidden.is_multiple_of(args.heads) || !(args.hidden / args.heads).is_multiple_of(2) {
        let message = format!("--hidden {} gives {} heads no even width each", args.hidden, args.heads);
        return Err(Failure::usage(message).help("choose a hidden width that is a multiple of twice the heads"));
    }
    if !args.heads.is_multiple_of(args.kv_heads) {
        let message = format!("--heads {} is no multiple of --kv-heads {}", args.heads, args.kv_heads);
        return Err(Failure::usage(message).help("each key and value head serves the same number of query heads"));
    }
    Ok(())
}

fn check_dir(args: &InitArgs) -> Result<(), Failure> {
    let is_empty = std::fs::read_dir(&args.dir).map_or(true, |mut entries| entries.next().is_none());
    if is_empty && !args.dir.is_file() {
        return Ok(());
    }
    let message = format!("{}: the folder is not empty", args.dir.display());
    Err(Failure::usage(message).help("name a new folder; nothing is overwritten"))
}

fn texts(source: &dyn EventSource, run: rao_store::RunId) -> Result<Vec<String>, Failure> {
    let mut texts = Vec::new();
    let filter = Filter::kinds([Kind::ContextExtended, Kind::ActionSampled]);
    for rollout in open::rollouts(source, run) {
        for event in source.events(Stream::Rollout(run, rollout), Seq(0), &filter) {
            match event?.body {
                Body::ContextExtended(more) => texts.push(more.text),
                Body::ActionSampled(action) => texts.push(action.text),
                _ => {}
            }
        }
    }
    Ok(texts)
}

fn config(args: &InitArgs, vocab_size: usize) -> Config {
    Config {
        architecture: Architecture::Qwen3,
        vocab_size,
        hidden_size: args.hidden as usize,
        intermediate_size: args.ffn as usize,
        layers: args.layers as usize,
        heads: args.heads as usize,
        kv_heads: args.kv_heads as usize,
        head_dim: (args.hidden / args.heads) as usize,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        rope_scaling: rao_policy::RopeScaling::None,
        tie_word_embeddings: true,
        max_positions: POSITIONS,
        experts: None,
    }
}

fn report(args: &InitArgs, out: &mut Out, chat: &Chat, decoder: &Decoder) -> Result<(), Failure> {
    let dir = args.dir.display();
    let weights = rao_store::Digest(decoder.digest()?);
    let tokenizer = rao_store::Digest(chat.digest());
    let parameters = decoder.config().parameters();
    if args.json.json {
        out.json(&json!({
            "folder": dir.to_string(),
            "parameters": parameters,
            "vocabulary": chat.vocab_size(),
            "weights": weights.to_string(),
            "tokenizer": tokenizer.to_string(),
        }));
        return Ok(());
    }
    out.line(format_args!("{dir}: {parameters} parameters, {} vocabulary entries", chat.vocab_size()));
    out.line(format_args!("weights {}, tokenizer {}", weights.short(), tokenizer.short()));
    out.line("");
    out.line("next, so that it learns from the oracle with its own tokenizer:");
    out.line(format_args!("  rao-log record --policy oracle --tokenizer {dir} --tasks 500 --group 1"));
    out.line(format_args!("  rao-log train latest --loss sft --model {dir} --out {dir}-trained"));
    Ok(())
}
