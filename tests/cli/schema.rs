//! `schema` describes what `tail --json` prints.

use std::collections::BTreeSet;
use std::path::Path;

use rao_store::event::Kind;
use serde_json::{Value, json};

use crate::common::Place;

/// Whether a value fits a schema, as far as `schema` uses the language; a word that is not known here fails.
fn fits(value: &Value, schema: &Value) -> bool {
    let rules = schema.as_object().unwrap();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    rules.iter().all(|(rule, argument)| match rule.as_str() {
        "$schema" | "title" | "description" => true,
        "type" if argument.is_array() => list(argument).iter().any(|one| fits(value, &json!({ "type": one }))),
        "type" => match argument.as_str().unwrap() {
            "string" => value.is_string(),
            "integer" => value.is_u64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("type {other}"),
        },
        "minimum" => value.as_f64() >= argument.as_f64(),
        "const" => value == argument,
        "enum" => list(argument).contains(value),
        "anyOf" => list(argument).iter().any(|one| fits(value, one)),
        "oneOf" => list(argument).iter().filter(|one| fits(value, one)).count() == 1,
        "items" => list(value).iter().all(|item| fits(item, argument)),
        "prefixItems" => list(value).iter().zip(list(argument)).all(|(item, one)| fits(item, &one)),
        "minItems" => list(value).len() as u64 >= argument.as_u64().unwrap(),
        "maxItems" => list(value).len() as u64 <= argument.as_u64().unwrap(),
        "required" => list(argument).iter().all(|name| value.get(name.as_str().unwrap()).is_some()),
        "additionalProperties" => {
            let known = rules["properties"].as_object().unwrap();
            value.as_object().is_some_and(|fields| fields.keys().all(|name| known.contains_key(name)))
        }
        "properties" => {
            let named = argument.as_object().unwrap().iter();
            named.filter_map(|(name, one)| Some((value.get(name)?, one))).all(|(field, one)| fits(field, one))
        }
        "pattern" => {
            let text = value.as_str().unwrap_or_default();
            let hex = |length| text.len() == length && text.chars().all(|c| c.is_ascii_hexdigit());
            match argument.as_str().unwrap() {
                "^[0-9a-f]{32}$" => hex(32),
                "^[0-9a-f]{64}$" => hex(64),
                "^0(\\.[0-9]+)*$" => text == "0" || text.starts_with("0."),
                other => panic!("pattern {other}"),
            }
        }
        other => panic!("rule {other}"),
    })
}

#[test]
fn events_of_every_kind_fit_the_schema() {
    let place = Place::new();
    let schema: Value = serde_json::from_str(&place.out(&["schema"])).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("store/tests/golden/archive-v1/intact.raolog");
    place.out(&["import", golden.to_str().unwrap()]);
    place.record_oracle(&[]);
    let mut kinds = BTreeSet::new();
    for line in place.out(&["tail", "--json"]).lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert!(fits(&event, &schema), "{line}");
        kinds.insert(event["kind"].as_str().unwrap().to_owned());
        // Each field counts.
        for name in event["body"].as_object().unwrap().keys() {
            let mut less = event.clone();
            less["body"].as_object_mut().unwrap().remove(name);
            assert!(!fits(&less, &schema), "without {name}: {line}");
        }
        let mut more = event.clone();
        more["body"]["another"] = 1.into();
        assert!(!fits(&more, &schema), "{more}");
    }
    assert_eq!(kinds, Kind::ALL.iter().map(|kind| kind.name().to_owned()).collect());
    insta::assert_snapshot!("schema_node_finished", place.out(&["schema", "--kind", "node_finished,call_answered"]));
}
