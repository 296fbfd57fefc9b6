//! `rao-log schema`: the shape of events as JSON.

use clap::Args;
use rao_store::event::Kind;
use serde_json::{Map, Value, json};

use crate::shared::exit::Failure;
use crate::shared::out::Out;

/// Print the JSON Schema of events as `tail --json` prints them, one event on a line.
#[derive(Args, Debug)]
pub(crate) struct SchemaArgs {
    /// Only events of these kinds, such as action_sampled,verdict.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = crate::tail::kind)]
    kind: Vec<Kind>,
}

/// Runs the command.
pub(crate) fn run(args: &SchemaArgs, out: &mut Out) -> Result<(), Failure> {
    let wanted = |kind: &&Kind| args.kind.is_empty() || args.kind.contains(kind);
    let kinds: Vec<Value> = Kind::ALL.iter().filter(wanted).map(|kind| event(*kind)).collect();
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An event of a rao-log log",
        "oneOf": kinds,
    });
    out.line(format_args!("{schema:#}"));
    Ok(())
}

fn event(kind: Kind) -> Value {
    json!({
        "title": kind.name(),
        "type": "object",
        "properties": {
            "event": { "type": "string", "description": "Its address: RUN/ROLLOUT#SEQ, RUN#SEQ or RUN/training#SEQ" },
            "kind": { "const": kind.name() },
            "at_us": { "type": "integer", "minimum": 0, "description": "Microseconds since 1970-01-01 UTC" },
            "body": Shape::Fields(fields(kind)).to_json(),
        },
        "required": ["event", "kind", "at_us", "body"],
        "additionalProperties": false,
    })
}

/// What a value looks like.
enum Shape {
    Text,
    Count,
    /// A float; one that is no number is written as null.
    Float,
    Bool,
    /// A node's path, such as `0.1`.
    Node,
    Run,
    Digest,
    /// Whatever the environment or the engine wrote.
    Json,
    Words(&'static [&'static str]),
    Maybe(&'static Shape),
    Either(&'static [Shape]),
    List(&'static Shape),
    Tuple(&'static [Shape]),
    Fields(&'static [(&'static str, Shape)]),
    /// An object with exactly one of these fields.
    Variant(&'static [(&'static str, Shape)]),
}

impl Shape {
    fn to_json(&self) -> Value {
        match self {
            Shape::Text => json!({ "type": "string" }),
            Shape::Count => json!({ "type": "integer", "minimum": 0 }),
            Shape::Float => json!({ "type": ["number", "null"] }),
            Shape::Bool => json!({ "type": "boolean" }),
            Shape::Node => json!({ "type": "string", "pattern": "^0(\\.[0-9]+)*$" }),
            Shape::Run => json!({ "type": "string", "pattern": "^[0-9a-f]{32}$" }),
            Shape::Digest => json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" }),
            Shape::Json => json!({}),
            Shape::Words(words) => json!({ "enum": words }),
            Shape::Maybe(shape) => json!({ "anyOf": [shape.to_json(), { "type": "null" }] }),
            Shape::Either(shapes) => json!({ "anyOf": shapes.iter().map(Shape::to_json).collect::<Vec<_>>() }),
            Shape::List(shape) => json!({ "type": "array", "items": shape.to_json() }),
            Shape::Tuple(shapes) => {
                let items: Vec<Value> = shapes.iter().map(Shape::to_json).collect();
                let count = items.len();
                json!({ "type": "array", "prefixItems": items, "minItems": count, "maxItems": count })
            }
            Shape::Fields(fields) => {
                let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
                let shapes: Map<String, Value> =
                    fields.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_json())).collect();
                json!({ "type": "object", "properties": shapes, "required": names, "additionalProperties": false })
            }
            Shape::Variant(variants) => {
                let one = |(name, shape): &(&'static str, Shape)| {
                    let fields: Map<String, Value> = [((*name).to_owned(), shape.to_json())].into_iter().collect();
                    json!({ "type": "object", "properties": fields, "required": [name], "additionalProperties": false })
                };
                json!({ "oneOf": variants.iter().map(one).collect::<Vec<_>>() })
            }
        }
    }
}

use Shape::{Bool, Count, Digest, Either, Fields, Float, Json, List, Maybe, Node, Run, Text, Tuple, Variant, Words};

const POLICY: Shape =
    Fields(&[("kind", Text), ("name", Text), ("weights", Maybe(&Digest)), ("tokenizer", Digest), ("version", Count)]);
const FORK: Shape = Fields(&[("run", Run), ("rollout", Count), ("seq", Count)]);
const STREAM: Shape = Variant(&[("Run", Run), ("Rollout", Tuple(&[Run, Count])), ("Training", Run)]);
const ADDRESS: Shape = Fields(&[("stream", STREAM), ("seq", Count)]);
const ANSWER: Shape = Variant(&[("Value", Text), ("Raised", Fields(&[("kind", Text), ("message", Text)]))]);
const SAMPLER: Shape = Fields(&[("temperature", Float), ("max_tokens", Count), ("top_p", Float), ("top_k", Count)]);

/// The fields of a kind's body, in the order of its layout.
fn fields(kind: Kind) -> &'static [(&'static str, Shape)] {
    match kind {
        Kind::RunStarted => &[
            ("env", Text),
            ("env_config", Json),
            ("engine_config", Json),
            ("policy", POLICY),
            ("repl", Text),
            ("seed", Count),
            ("group_size", Count),
            ("tasks", Count),
            ("rollouts", List(&Count)),
            ("durability", Text),
        ],
        Kind::HostFacts => &[("program", Text), ("facts", List(&Tuple(&[Text, Text])))],
        Kind::RolloutStarted => &[
            ("task_id", Text),
            ("difficulty", Text),
            ("task", Json),
            ("group", Count),
            ("member", Count),
            ("seed", Count),
            ("policy", POLICY),
            ("fork_base", Maybe(&FORK)),
        ],
        Kind::NodeSpawned => &[
            ("node", Node),
            ("call", Maybe(&Tuple(&[Count, Count]))),
            ("goal", Text),
            ("targets", Json),
            ("context", Either(&[Text, Fields(&[("$slice", Tuple(&[Count, Count]))])])),
            ("depth", Count),
            ("budget", Count),
        ],
        Kind::SpawnRefused => &[
            ("node", Node),
            ("step", Count),
            ("call", Count),
            ("reason", Words(&["Depth", "Budget", "Nodes", "Goal"])),
            ("goal", Text),
            ("text", Text),
        ],
        Kind::ContextExtended => &[
            ("node", Node),
            ("step", Count),
            ("role", Words(&["Prompt", "Observation"])),
            ("text", Text),
            ("at", Count),
            ("tokens", List(&Count)),
        ],
        Kind::ActionSampled => &[
            ("node", Node),
            ("step", Count),
            ("text", Text),
            ("at", Count),
            ("tokens", List(&Count)),
            ("logprobs", List(&Float)),
            ("logprob_kind", Words(&["Absent", "Model", "Served", "Sampled", "Unknown"])),
            ("sampler", SAMPLER),
            ("stop", Words(&["CellEnd", "EndOfTurn", "MaxTokens", "Window", "Scripted", "Server", "Asked"])),
            ("policy_version", Count),
        ],
        Kind::CellStarted => &[("node", Node), ("step", Count), ("code", Text)],
        Kind::CallIssued => &[("node", Node), ("step", Count), ("call", Count), ("name", Text), ("args", Json)],
        Kind::CallAnswered => &[("node", Node), ("step", Count), ("answers", List(&Tuple(&[Count, ANSWER])))],
        Kind::CellFinished => &[
            ("node", Node),
            ("step", Count),
            ("stdout", Text),
            ("error", Maybe(&Text)),
            ("limit", Maybe(&Words(&["Time", "Memory", "Calls"]))),
            ("rejected", Bool),
        ],
        Kind::NodeFinished => &[
            ("node", Node),
            ("outcome", Words(&["Finished", "OutOfSteps", "ContextOverflow", "Stuck", "Cancelled"])),
            ("value", Maybe(&Text)),
            ("steps", Count),
            ("tokens", Count),
        ],
        Kind::Verdict => &[
            ("node", Node),
            ("source", Text),
            ("score", Float),
            ("evidence", Json),
            ("evidence_digest", Digest),
            ("judge", Maybe(&Text)),
        ],
        Kind::RewardAssigned => &[
            ("node", Node),
            ("own", Float),
            ("children", Count),
            ("child_mean", Float),
            ("lambda", Float),
            ("reward", Float),
        ],
        Kind::RolloutFinished => {
            &[("nodes", Count), ("steps", Count), ("tokens", Count), ("max_depth", Count), ("success", Float)]
        }
        Kind::RunFinished => &[("rollouts", Count), ("content", Digest)],
        Kind::TrainStarted => &[
            ("config", Json),
            ("loss", Words(&["Pg", "Is", "Ppo", "Cispo", "Sft"])),
            ("weights", Digest),
            ("tokenizer", Digest),
            ("runs", List(&Tuple(&[Run, Digest]))),
        ],
        Kind::CreditAssigned => &[
            ("step", Count),
            ("source", ADDRESS),
            ("run", Run),
            ("rollout", Count),
            ("node", Node),
            ("depth", Count),
            ("reward", Float),
            ("baseline", Float),
            ("advantage", Float),
            ("count", Count),
            ("weight", Float),
            ("tokens", Count),
        ],
        Kind::TrajectoryScored => &[
            ("step", Count),
            ("run", Run),
            ("rollout", Count),
            ("node", Node),
            ("logprobs", List(&Float)),
            ("loss", Float),
        ],
        Kind::TrainStep => &[
            ("step", Count),
            ("batch", Digest),
            ("trajectories", Count),
            ("tokens", Count),
            ("loss", Float),
            ("learning_rate", Float),
            ("gradient_norm", Float),
            ("mean_ratio", Float),
            ("clip_fraction", Float),
            ("weights_before", Digest),
            ("weights_after", Digest),
        ],
        Kind::TrainFinished => &[("steps", Count), ("weights", Digest)],
        Kind::Note => &[("text", Text)],
    }
}
