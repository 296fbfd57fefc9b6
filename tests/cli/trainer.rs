//! What a training leaves beside its weights, adapters, references, ablations and bounds on memory, from the command line.

use crate::common::{Place, text};
use serde_json::{Value, json};

/// A place with a model and a run that it sampled.
fn sampled() -> Place {
    sampled_with("1")
}

fn sampled_with(layers: &str) -> Place {
    let place = Place::new();
    place.record_oracle(&[]);
    place.init_layers(layers);
    let mut flags = vec!["record", "--policy", "local:model", "--tasks", "2", "--group", "3"];
    flags.extend(["--max-tokens", "12", "--max-steps", "2"]);
    place.json(&flags);
    place
}

fn lines(place: &Place, path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(place.path().join(path)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn figures_and_plots_stand_beside_the_weights_and_in_the_log() {
    let place = sampled();
    let train = |out: &str, more: &[&str]| {
        let mut flags = vec!["train", "--epochs", "2", "--out", out];
        flags.extend(more);
        place.json(&flags)
    };
    let first = train("a", &["--reference", "model", "--threads", "1"]);
    train("b", &["--reference", "model", "--threads", "2"]);
    let metrics = lines(&place, "a/metrics.jsonl");
    assert_eq!(metrics.len(), 2);
    assert_eq!(metrics[0]["kl"], 0.0, "the reference is the policy itself");
    assert!(metrics[1]["kl"].as_f64().unwrap() > 0.0);
    assert!(metrics[0]["model_tokens"].as_u64() < metrics[0]["summed_tokens"].as_u64(), "{}", metrics[0]);
    assert_eq!(metrics[0]["batch"]["reward"]["count"], 6);
    for name in
        ["metrics.jsonl", "plots/loss.svg", "plots/gradient_norm.svg", "plots/success_by_depth.svg", "plots/kl.svg"]
    {
        let bytes = |out: &str| std::fs::read(place.path().join(out).join(name)).unwrap();
        assert!(bytes("a") == bytes("b"), "{name} differs between two equal trainings");
    }
    let timings = lines(&place, "a/timings.jsonl");
    assert!(timings.len() == 2 && timings[0]["tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(std::fs::read_to_string(place.path().join("a/timings.svg")).unwrap().starts_with("<svg"));

    let training = format!("{}/training", text(&first, "training"));
    let shown = place.out(&["show", &training]);
    for word in ["mean reward", "depth 0", "entropy", "attention", "feed_forward", "mean ratio"] {
        assert!(shown.contains(word), "{word} in\n{shown}");
    }
    assert_eq!(place.json(&["show", &training])["metrics"], Value::Array(metrics.clone()));

    // A resumed training goes on with the same file.
    train("a", &["--reference", "model", "--resume"]);
    let more = lines(&place, "a/metrics.jsonl");
    assert_eq!((more.len(), &more[..2]), (4, &metrics[..]));
    assert_eq!(more[2]["version"], 3);
}

#[test]
fn an_adapter_is_trained_recorded_with_and_merged() {
    let place = sampled();
    let flags =
        ["train", "--lora", "2", "--lora-targets", "q_proj,down_proj", "--out", "adapter", "--merge-into", "merged"];
    let trained = place.json(&flags);
    let names = |dir: &str| {
        let entries = std::fs::read_dir(place.path().join(dir)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    assert!(names("adapter").contains(&"adapter_config.json".to_owned()));
    assert!(!names("adapter").contains(&"model.safetensors".to_owned()));
    assert!(names("merged").contains(&"model.safetensors".to_owned()));
    let record = |more: &[&str]| {
        let mut flags = vec!["record", "--tasks", "1", "--group", "2", "--max-tokens", "8", "--max-steps", "1"];
        flags.extend(more);
        text(&place.json(&flags), "content_digest").to_owned()
    };
    let alone = record(&["--policy", "local:adapter"]);
    assert_eq!(record(&["--policy", "local:model", "--adapter", "adapter"]), alone);
    assert_ne!(record(&["--policy", "local:model"]), alone);
    record(&["--policy", "local:merged"]);
    // What the adapter recorded is replayed token by token, and trained on policy.
    record(&["--policy", "local:adapter"]);
    assert!(place.json(&["replay", "--check", "tokens"])["divergence"].is_null());
    let again = place.json(&["train", "--out", "adapter2", "--model", "adapter"]);
    assert_eq!((&again["on_policy"], &again["first"]["equal"]), (&true.into(), &again["first"]["tokens"]));
    assert!(names("adapter2").contains(&"adapter_model.safetensors".to_owned()));
    assert_ne!(trained["weights"], again["weights"]);
    let error = place.fails(&["train", "--lora", "2", "--lora-targets", "embed_tokens", "--out", "x"], 2);
    assert!(error.contains("embed_tokens"), "{error}");
}

#[test]
fn a_bound_on_memory_changes_no_byte_and_a_small_one_is_refused() {
    let place = sampled_with("4");
    let weights = |flags: &[&str]| {
        let mut all = vec!["train", "--out", "out"];
        all.extend(flags);
        let trained = place.json(&all);
        (
            text(&trained, "weights").to_owned(),
            trained["checkpoints"].as_bool().unwrap(),
            trained["peak_bytes"].as_u64(),
        )
    };
    let (free, checkpoints, _) = weights(&["--threads", "2", "--micro-tokens", "100000"]);
    assert!(!checkpoints);
    let error = place.fails(&["train", "--memory", "20M", "--out", "out", "--micro-tokens", "100000"], 2);
    let needed = error.split("about ").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap().to_owned();
    let least = format!("{needed}M");
    let (bound, checkpoints, peak) = weights(&["--threads", "2", "--micro-tokens", "100000", "--memory", &least]);
    assert!(checkpoints, "what is needed at least is needed with checkpoints");
    assert_eq!(bound, free);
    let limit = needed.parse::<u64>().unwrap() << 20;
    assert!(peak.is_none_or(|peak| peak <= limit), "{peak:?} of {limit}");
    assert!(place.fails(&["train", "--memory", "plenty"], 2).contains("800M"));
}

#[test]
fn ablations_and_the_plain_computation_are_flags() {
    let place = sampled();
    let credit = |flags: &[&str]| {
        let mut all = vec!["train", "--dry-run"];
        all.extend(flags);
        place.json(&all)["credit"].as_array().unwrap().clone()
    };
    let paper = credit(&[]);
    let baseline = |rows: &[Value]| rows[0]["baseline"].as_f64().unwrap();
    let roots: Vec<f64> = paper.iter().filter(|row| row["depth"] == 0).map(|r| r["reward"].as_f64().unwrap()).collect();
    assert_eq!(baseline(&credit(&["--baseline", "mean"])), (roots[0] + roots[1] + roots[2]) / 3.0);
    assert!(credit(&["--reward", "root"]).iter().all(|row| row["reward"].is_number()));
    assert_eq!(credit(&["--reward", "count"]).len(), paper.len());
    let trained = |out: &str, flags: &[&str]| {
        let mut all = vec!["train", "--out", out];
        all.extend(flags);
        place.json(&all)
    };
    let plain = trained("plain", &["--no-prefix-sharing"]);
    assert_eq!(plain["first"]["model_tokens"], plain["first"]["summed_tokens"]);
    let shared = trained("shared", &[]);
    assert_eq!(plain["first"]["loss"], shared["first"]["loss"], "no log-probability changes");
    assert!(shared["first"]["model_tokens"].as_u64() < plain["first"]["model_tokens"].as_u64());
    let error = place.fails(&["train", "--kl-coef", "0.1", "--out", "x"], 2);
    assert!(error.contains("--reference"), "{error}");
}

/// Every flag that decides what training gives arrives where it is meant to, and nowhere else: the settings that the
/// checkpoint holds, against those of a training without flags.
#[test]
fn every_flag_reaches_its_own_setting() {
    let place = sampled();
    let settings = |flags: &[&str]| {
        let _ = std::fs::remove_dir_all(place.path().join("out"));
        place.json(&[&["train", "--out", "out"][..], flags].concat());
        let state = std::fs::read(place.path().join("out/trainer.json")).unwrap();
        serde_json::from_slice::<Value>(&state).unwrap()["settings"].take()
    };
    let plain = settings(&[]);
    let weights =
        text(&place.json(&["train", "--out", "digest", "--lr", "1e-12"])["last"], "weights_before").to_owned();
    let sft = ["--loss", "sft", "--sft-filter", "all", "--steps", "1"];
    let cases: [(&[&str], Value); 17] = [
        (&["--loss", "ppo"], json!({"objective": {"loss": "ppo"}})),
        (&["--lr", "0.002"], json!({"schedule": {"learning_rate": 0.002}})),
        (&["--warmup", "3"], json!({"schedule": {"warmup": 3}})),
        (
            &["--decay", "linear", "--horizon", "9", "--floor", "0.25"],
            json!({"schedule": {"decay": "linear", "horizon": 9, "floor": 0.25}}),
        ),
        (&["--weight-decay", "0.5"], json!({"optimizer": {"weight_decay": 0.5}})),
        (&["--clip", "0.125"], json!({"optimizer": {"clip_norm": 0.125}})),
        (&["--decay-vectors"], json!({"optimizer": {"decay_vectors": true}})),
        (&["--lambda", "0.75"], json!({"lambda": 0.75})),
        (&["--no-depth-weighting"], json!({"depth_weighting": false})),
        (&["--forks"], json!({"forks": true})),
        (&["--micro-tokens", "777"], json!({"micro_tokens": 777})),
        (&["--epochs", "2", "--minibatches", "3"], json!({"epochs": 2, "minibatches": 3})),
        (&["--seed", "5"], json!({"seed": 5})),
        (&["--no-prefix-sharing"], json!({"prefix_sharing": false})),
        (&["--reference", "model", "--kl-coef", "0.5"], json!({"reference": weights, "kl_coefficient": 0.5})),
        (
            &["--lora", "2", "--lora-alpha", "3", "--lora-targets", "q_proj,up_proj"],
            json!({"lora": {"rank": 2, "alpha": 3.0, "targets": ["q_proj", "up_proj"]}}),
        ),
        (&["--reward", "root", "--baseline", "mean"], json!({"reward": "root", "baseline": "group-mean"})),
    ];
    for (flags, change) in &cases {
        let mut wanted = plain.clone();
        put(&mut wanted, change);
        assert_eq!(settings(flags), wanted, "{flags:?}");
    }
    let mut wanted = plain;
    put(&mut wanted, &json!({"objective": {"loss": "sft"}, "sft_filter": "all", "steps": 1, "batch_trajectories": 3}));
    assert_eq!(settings(&[&sft[..], &["--batch", "3"]].concat()), wanted);
}

/// Puts fields into an object, and into the objects in it.
fn put(object: &mut Value, change: &Value) {
    match change {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| put(&mut object[name.as_str()], value)),
        value => *object = value.clone(),
    }
}
