//! `dimmer doctor` on the machine that runs the tests.

use crate::{dimmer, stderr, stdout};

#[test]
fn json_names_its_schema_and_every_capability_once() {
    let directory = tempfile::tempdir().unwrap();
    let output = dimmer(directory.path(), &["doctor", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let document: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["schema"], "dimmer/doctor/2");
    let capabilities = document["capabilities"].as_array().unwrap();
    let mut ids: Vec<&str> = capabilities.iter().map(|c| c["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&"avx512") && ids.contains(&"turbo"));
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
    for capability in capabilities {
        let state = capability["state"].as_str().unwrap();
        assert!(["available", "unavailable", "not-applicable"].contains(&state));
        assert_eq!(capability["remedy"].is_string(), state == "unavailable", "{capability}");
    }
}

#[test]
fn every_key_of_the_json_is_documented() {
    let directory = tempfile::tempdir().unwrap();
    let output = dimmer(directory.path(), &["doctor", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let text = include_str!("../../../../docs/doctor-json.md");
    let mut keys = Vec::new();
    collect(&document, &mut keys);
    for key in keys {
        assert!(text.contains(&format!("`{key}`")), "docs/doctor-json.md lacks `{key}`");
    }
}

/// All keys of a document, those within others included.
pub(crate) fn collect(value: &serde_json::Value, keys: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                keys.push(key.clone());
                collect(value, keys);
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| collect(item, keys)),
        _ => {}
    }
}

#[test]
fn text_fits_its_width_and_counts_what_is_available() {
    let directory = tempfile::tempdir().unwrap();
    let output = dimmer(directory.path(), &["doctor", "--all"]);
    let text = stdout(&output);
    assert!(text.contains("capabilities are available here."), "{text}");
    let longest = text.lines().skip(3).map(|line| line.chars().count()).max().unwrap();
    assert!(longest <= 100, "{longest}");
}
