//! The built-in models, and files that are not models.

use std::path::Path;

use crate::{dimmer, stderr, stdout};

#[test]
fn list_has_every_file_of_the_folder() {
    // Read at run time: the tests may run on another machine than the one that built them.
    let Some(manifest) = std::env::var_os("CARGO_MANIFEST_DIR") else {
        println!("SKIPPED: not run by cargo, so the folder of the models is not known");
        return;
    };
    let folder = Path::new(&manifest).join("../../models");
    let mut files: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    files.sort();
    let output = dimmer(&folder, &["sim", "model", "list"]);
    let listed = stdout(&output);
    let listed: Vec<&str> = listed.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(listed, files);
    for file in &files {
        let path = format!("{file}.toml");
        let output = dimmer(&folder, &["sim", "model", "check", &path]);
        assert!(output.status.success(), "{}", stderr(&output));
        // A model shown by name is the same as the model in the file.
        let named = dimmer(&folder, &["sim", "model", "show", file]);
        assert_eq!(stdout(&named), stdout(&dimmer(&folder, &["sim", "model", "show", &path])));
    }
}

#[test]
fn every_problem_of_a_file_is_told_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let text = "schema = \"dimmer/model/1\"\nname = \"X\"\nvendor = \"Y\"\nmicroarchitecture = \"Z\"\n\
                [[level]]\nname = \"L0\"\n[release]\nhold_us = { value = 1, source = \"s\" }\n\
                stall_ns = { value = -1, source = \"s\" }\n";
    std::fs::write(directory.path().join("m.toml"), text).unwrap();
    let output = dimmer(directory.path(), &["sim", "model", "check", "m.toml"]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("m.toml:8: unknown key `hold_us`"), "{message}");
    assert!(message.contains("m.toml:9:"), "{message}");
}

#[test]
fn name_that_is_no_model_lists_those_there_are() {
    let directory = tempfile::tempdir().unwrap();
    let output = dimmer(directory.path(), &["sim", "model", "show", "pentium"]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("pentium") && message.contains("i9-7940x"), "{message}");
}
