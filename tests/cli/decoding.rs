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

/// A model whose template opens every turn with an empty thought if it is told not to think.
fn model_with_template(place: &Place) {
    place.record_oracle(&[]);
    place.init_model();
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                    {% if add_generation_prompt %}<|im_start|>assistant\n\
                    {%- if enable_thinking is defined and not enable_thinking %}(no thought){% endif %}{% endif %}";
    std::fs::write(place.path().join("model/chat_template.jinja"), template).unwrap();
}

#[test]
fn a_templates_variable_is_set_noted_shown_and_set_again_by_replay() {
    let place = Place::new();
    model_with_template(&place);
    let flags = ["record", "--policy", "local:model", "--tasks", "1", "--group", "2", "--max-steps", "2"];
    let quiet = [&flags[..], &["--chat-template-kwargs", "enable_thinking=false"]].concat();
    let plain = place.json(&flags);
    assert!(!place.out(&["show", "latest"]).contains("chat_template_kwargs"));
    let first = place.json(&quiet);
    assert!(place.out(&["show", "latest"]).contains("chat_template_kwargs enable_thinking=false"));
    assert_ne!(text(&plain, "content_digest"), text(&first, "content_digest"));
    let settings = place.json(&["show", "latest"])["manifest"]["engine_config"].to_string();
    assert!(settings.contains("chat_template_kwargs") && settings.contains("enable_thinking"), "{settings}");
    for check in ["tools", "tokens"] {
        let replayed = place.json(&["replay", "--check", check]);
        assert!(replayed["divergence"].is_null(), "{check}: {replayed}");
    }
    let run = text(&first, "run");
    let tested = place.json(&["test", "rao-log-data", "--check", "tokens"]);
    assert_eq!(tested["logs"][0]["outcome"], "ok", "{tested}");
    // The first prompt is the other run's and the empty thought behind it.
    let prompt = |run: &str| -> Vec<u64> {
        let node = place.json(&["show", &format!("{run}/0"), "--node", "0", "--kind", "context_extended"]);
        let tokens = node["events"][0]["body"]["tokens"].as_array().unwrap();
        tokens.iter().map(|id| id.as_u64().unwrap()).collect()
    };
    let (with, without) = (prompt(run), prompt(text(&plain, "run")));
    assert!(with.starts_with(&without) && with.len() > without.len(), "{with:?} {without:?}");
    place.json(&["fork", "--from", &format!("{run}/0#3")]);
    assert!(place.out(&["show", "latest"]).contains("chat_template_kwargs enable_thinking=false"));
    assert!(place.json(&["replay", "--check", "tokens"])["divergence"].is_null());
    // The file of settings says it as well as the flag, and JSON as well as NAME=VALUE.
    let json = r#"chat-template-kwargs = '{"enable_thinking": false}'"#;
    std::fs::write(place.path().join("rao-log.toml"), json).unwrap();
    assert_eq!(text(&place.json(&flags), "content_digest"), text(&first, "content_digest"));
    std::fs::remove_file(place.path().join("rao-log.toml")).unwrap();
    let misspelt = [&flags[..], &["--chat-template-kwargs", "enable_thinkng=false"]].concat();
    let error = place.fails(&misspelt, 2);
    assert!(error.contains("`enable_thinkng`") && error.contains("enable_thinking"), "{error}");
    let error = place.fails(&["record", "--chat-template-kwargs", "enable_thinking=false"], 2);
    assert!(error.contains("no chat template"), "{error}");
    assert!(place.fails(&["record", "--chat-template-kwargs", "x"], 2).contains("NAME=VALUE"));
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
