//! Functions whose calls are too short lose their hooks while the program runs.

use crate::migrate::away;
use crate::victims::{self, Victims};
use crate::{command, stderr, stdout};

#[test]
fn a_function_with_short_calls_gets_its_own_code_back_while_threads_call_it() {
    let Some(cpu) = away() else { return };
    let Some(victims) = Victims::compile(&["short"]) else { return };
    victims::library();
    let home = victims.directory.path();
    let file = home.join("account.json");
    let program = victims.path("short");
    for mechanism in ["--migrate=brief", "--auto=brief"] {
        let arguments = ["run", mechanism, "--json=account.json", "--cpus", &cpu, "--", &program];
        let mut command = command(home, &arguments);
        command.env("HOME", home).env("DIMMER_SOCKET", home.join("none"));
        command.env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
        let output = command.output().unwrap();
        let told = stderr(&output);
        assert_eq!(
            (stdout(&output), output.status.code()),
            ("changed\n".to_owned(), Some(0)),
            "{told}"
        );
        assert!(
            told.contains("no longer hooked (calls up to then): nearly all calls are"),
            "{told}"
        );
        let account = std::fs::read_to_string(&file).unwrap();
        let account: serde_json::Value = serde_json::from_str(&account).unwrap();
        let unhooked = &account["functions"][0]["unhooked"];
        assert_eq!(
            (&unhooked["why"], &unhooked["by_earlier_run"]),
            (&"too short".into(), &false.into())
        );
        assert!(
            unhooked["nearly_all_ns"].as_f64() < unhooked["round_trip_ns"].as_f64(),
            "{unhooked}"
        );
        assert_eq!(account["moved"], 0);
    }
}
