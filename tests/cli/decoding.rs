//! Samplers that leave tokens out, stops, and bounds of caches, from the command line.

use crate::common::{Place, text};

#[test]
fn truncated_samples_say_so_replay_to_the_bit_and_are_not_compared_with_the_model() {
    let place = Place::new();
    let flags = ["record", "--tasks", "2", "--group", "1", "--top-k", "4", "--top-p", "0.9", "--kv-memory", "1"];
    let first = place.json(&flags);
    let actions = place.out(&["tail", "--kind", "action_sampled", "--json"]);
    assert!(actions.contains("\"logprob_kind\":\"Sampled\"") && actions.contains("\"top_k\":4"), "{actions}");
    let replayed = place.json(&["replay", "--check", "tokens"]);
    assert!(replayed["divergence"].is_null(), "{replayed}");
    let error = place.fails(&["train"], 2);
    assert!(error.contains("top-p or top-k"), "{error}");
    // The bound of the caches changes no token.
    let wide = place.json(&[&flags[..9], &["--kv-memory", "512"]].concat());
    assert_eq!(text(&wide, "content_digest"), text(&first, "content_digest"));
    let whole = place.json(&["record", "--tasks", "2", "--group", "1"]);
    assert_ne!(text(&whole, "content_digest"), text(&first, "content_digest"));
}

#[test]
fn a_stop_text_ends_actions_and_wrong_models_are_named() {
    let place = Place::new();
    place.json(&["record", "--tasks", "1", "--group", "1", "--stop-text", "</thought>"]);
    let actions = place.out(&["tail", "--kind", "action_sampled", "--json"]);
    assert!(actions.contains("\"stop\":\"Asked\""), "{actions}");
    assert!(place.json(&["replay", "--check", "tokens"])["divergence"].is_null());
    for (flags, said) in [
        (&["--top-k", "3"][..], "a scripted policy draws nothing"),
        (&["--stop-text", "x"][..], "a scripted policy draws nothing"),
    ] {
        let error = place.fails(&[&["record", "--policy", "oracle"], flags].concat(), 2);
        assert!(error.contains(said), "{error}");
    }
    std::fs::write(place.path().join("no.gguf"), b"GGUF").unwrap();
    for policy in ["gguf:no.gguf", "local:no.gguf"] {
        let error = place.rao(&["record", "--policy", policy]).output().unwrap();
        let error = String::from_utf8_lossy(&error.stderr).into_owned();
        assert!(error.contains("no.gguf"), "{error}");
    }
    let error = place.fails(&["train", "--model", "gguf:no.gguf"], 2);
    assert!(error.contains("frozen") && error.contains("local:no.gguf"), "{error}");
}
