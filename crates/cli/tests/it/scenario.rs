//! `dimmer observe --scenario`: what is written can be simulated.

use crate::victims::Victims;
use crate::{dimmer, observe, stderr, stdout};

#[test]
fn a_program_becomes_a_scenario_that_can_be_compared() {
    let Some(victims) = Victims::compile(&["requests"]) else { return };
    let (program, file) = (victims.path("requests"), victims.path("requests.toml"));
    let home = victims.directory.path();
    let write = |options: &[&str]| {
        let all = [&["--function", "work", "--scenario", &file], options, &["--", &program]];
        let observed = observe::observe(home, &all.concat());
        assert_eq!(observed.status.code(), Some(7), "{}", stderr(&observed));
        assert_eq!(stdout(&observed), "95322660\n");
        assert!(stderr(&observed).contains("Hooked: "), "{}", stderr(&observed));
        let text = std::fs::read_to_string(&file).unwrap();
        let compared = dimmer(home, &["sim", "compare", &file, "--repeat", "1"]);
        assert!(compared.status.success(), "{}{text}", stderr(&compared));
        text
    };
    let text = write(&["--request", "handle"]);
    // The last request has no end.
    for part in ["name = \"work\"", "59 requests", "requests = \"", "Check, simulated on i9-7940x"]
    {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let text = write(&[]);
    assert!(text.contains("{ enter = \"work\" }") && !text.contains("requests = "), "{text}");
}

#[test]
fn a_program_without_calls_becomes_none() {
    let Some(victims) = Victims::compile(&["requests"]) else { return };
    let (program, file) = (victims.path("requests"), victims.path("none.toml"));
    let arguments = ["--classes", "tile", "--scenario", &file, "--", &program];
    let observed = observe::observe(victims.directory.path(), &arguments);
    let said = stderr(&observed);
    assert_eq!(observed.status.code(), Some(125), "{said}");
    assert!(said.contains("no hooked function was called"), "{said}");
    assert!(stdout(&observed).contains("95322660"));
}
