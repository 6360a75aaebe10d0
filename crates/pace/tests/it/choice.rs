//! The back end that a program's environment names.

use dimmer_pace::{Decision, Request, back_end, prepare_under, request};

use crate::machine::{BEFORE, Machine, child_root};

#[test]
fn a_program_uses_the_back_end_that_its_environment_names() {
    if let Some(root) = child_root() {
        let (chosen, expected) = match std::env::var("DIMMER_PACE").as_deref() {
            Err(_) | Ok("" | "cpufreq") => (Ok("cpufreq"), Decision::Requested),
            Ok("core power") => (Err("no /dev/isst_interface"), Decision::Unavailable),
            Ok(_) => {
                let why = "DIMMER_PACE is `cpufreqs`, and no back end has that name";
                (Err(why), Decision::Unavailable)
            }
        };
        // Where that fails, `back_end` has the reason.
        let _ = prepare_under(&root);
        assert_eq!(back_end().map_err(|missing| missing.why), chosen.map_err(str::to_owned));
        assert_eq!(request(Request::TURBO), expected);
        return;
    }
    let machine = Machine::new(1);
    let test = "choice::a_program_uses_the_back_end_that_its_environment_names";
    for name in [None, Some(""), Some("cpufreq"), Some("core power"), Some("cpufreqs")] {
        let mut command = machine.command(test);
        match name {
            Some(name) => command.env("DIMMER_PACE", name),
            None => command.env_remove("DIMMER_PACE"),
        };
        assert!(command.status().expect("a process").success(), "{name:?}");
        assert_eq!(machine.limits(0), BEFORE);
    }
}
