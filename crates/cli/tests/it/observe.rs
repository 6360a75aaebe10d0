//! `dimmer observe` on programs of all kinds, with every hookable function hooked: each program
//! behaves as it does without hooks, and every call is counted.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::migrate::RUNS;
use crate::victims::{self, Victims};
use crate::{command, stderr, stdout};

/// Observes programs that the tests compile.
trait Observe {
    /// Runs a program plain and observed: the output must be the same. Returns the observations.
    fn observe(&self, arguments: &[&str]) -> Value;
}

impl Observe for Victims {
    fn observe(&self, arguments: &[&str]) -> Value {
        let plain = Command::new(arguments[0]).args(&arguments[1..]).output().unwrap();
        let json = self.directory.path().join("observed.json");
        let to = format!("--json={}", json.display());
        let options = ["--classes", "scalar", &to, "--"];
        let observed = observe(self.directory.path(), &[&options, arguments].concat());
        assert_eq!(stdout(&observed), stdout(&plain), "{}", stderr(&observed));
        assert_eq!(observed.status.code(), plain.status.code(), "{}", stderr(&observed));
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap()
    }
}

/// Runs `dimmer observe`, after building the library that it preloads.
pub(crate) fn observe(home: &Path, arguments: &[&str]) -> Output {
    victims::library();
    let mut command = command(home, &[]);
    command.env("HOME", home).env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
    command.arg("observe").args(arguments).output().unwrap()
}

/// The number of calls of each named function.
fn calls(observed: &Value) -> BTreeMap<String, u64> {
    let functions = observed["functions"].as_array().unwrap().iter();
    let named = functions.filter_map(|function| {
        Some((function["name"].as_str()?.to_owned(), function["calls"].as_u64()?))
    });
    named.collect()
}

#[test]
fn every_call_is_counted_whatever_its_arguments() {
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let observed = victims.observe(&[&victims.path("calls")]);
    let calls = calls(&observed);
    assert_eq!((calls["work"], calls["many"], calls["variadic"]), (2600, 100, 100));
    assert_eq!((&observed["threads"], &observed["exit_status"]), (&4.into(), &7.into()));
    let functions = observed["functions"].as_array().unwrap();
    let work = functions.iter().find(|function| function["name"] == "work").unwrap();
    assert_eq!(work["threads"], 4);
    assert!(work["timed"].as_u64() > Some(100), "{work}");
    assert!(work["lasted_ns"]["p50"].as_f64() > Some(0.0), "{work}");
    assert!(work["gap_after_ns"]["p50"].as_f64() > Some(0.0), "{work}");
}

#[test]
fn page_holds_what_was_seen_and_needs_nothing_else() {
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let page = victims.path("page.html");
    let program = victims.path("calls");
    let options = ["--classes", "scalar", "--model", "i9-7940x", "--report", &page, "--", &program];
    let output = observe(victims.directory.path(), &options);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let page = std::fs::read_to_string(page).unwrap();
    // The page is far too long to be shown.
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"));
    for part in ["<code>work</code>", "<svg"] {
        assert!(page.contains(part), "`{part}` is missing");
    }
    for part in ["<script", "href="] {
        assert!(!page.contains(part), "`{part}` is there");
    }
}

#[test]
fn functions_that_others_jump_into_are_counted() {
    let Some(victims) = Victims::compile(&["inner"]) else { return };
    let observed = victims.observe(&[&victims.path("inner")]);
    let functions = observed["functions"].as_array().unwrap();
    let inner = functions.iter().find(|function| function["name"] == "entered_inside").unwrap();
    assert_eq!((&inner["calls"], &inner["threads"]), (&7000.into(), &1.into()));
    assert_eq!(calls(&observed)["outer"], 10_000);
}

#[test]
fn functions_that_jump_to_a_place_without_a_hook_are_counted_instead() {
    if !is_x86_feature_detected!("avx2") {
        println!("SKIPPED: the functions are hooked only where AVX2 can run");
        return;
    }
    let Some(victims) = Victims::compile(&["midway"]) else { return };
    let program = victims.path("midway");
    let json = victims.path("observed.json");
    let run = |arguments: &[&str]| {
        let to = format!("--json={json}");
        let options = ["--classes", "light-256", &to, "--", &program];
        let output = observe(victims.directory.path(), &[&options, arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let observed = std::fs::read_to_string(&json).unwrap();
        (serde_json::from_str::<Value>(&observed).unwrap(), stderr(&output))
    };
    let (observed, text) = run(&[]);
    let functions = observed["functions"].as_array().unwrap();
    assert_eq!(functions.len(), 1, "{observed}");
    assert_eq!((&functions[0]["name"], &functions[0]["calls"]), (&"leader".into(), &1000.into()));
    assert_eq!(functions[0]["class"], "light-256");
    assert!(functions[0]["enters"].is_u64(), "{observed}");
    assert!(text.contains("leader, enters"), "{text}");
    let unseen = |observed: &Value| {
        let files = observed["files"].as_array().unwrap();
        let file = files.iter().find(|file| file["path"] == program.as_str()).unwrap();
        let count = |key: &str| file[key].as_u64();
        (count("wide_functions"), count("hooked"), count("entered_unseen"))
    };
    assert_eq!(unseen(&observed), (Some(2), Some(2), Some(1)));
    // The file is not scanned again, because nothing in it was called.
    let (observed, text) = run(&["hidden"]);
    assert_eq!(observed["functions"].as_array().unwrap().len(), 0, "{observed}");
    assert_eq!(unseen(&observed), (Some(2), Some(2), Some(1)));
    assert!(text.contains("No call of them was counted"), "{text}");
    assert!(!text.contains("None of them was called"), "{text}");
}

#[test]
fn labels_in_the_midst_of_a_frame_are_left() {
    let Some(victims) = Victims::compile(&["midframe"]) else { return };
    let observed = victims.observe(&[&victims.path("midframe")]);
    assert_eq!(calls(&observed)["kernel"], 20_000);
}

#[test]
fn coroutines_may_copy_their_stack_away_and_back() {
    let Some(victims) = Victims::compile(&["coroutines"]) else { return };
    let observed = victims.observe(&[&victims.path("coroutines")]);
    assert_eq!(calls(&observed)["yields"], 8000);
}

#[test]
fn backtraces_are_the_same() {
    let Some(victims) = Victims::compile(&["backtraces"]) else { return };
    let timed =
        |function: &Value| function["name"] == "deep" && function["timed"].as_u64() > Some(60);
    // On a busy machine, fewer calls are timed.
    let has_timed = |_| {
        let observed = victims.observe(&[&victims.path("backtraces")]);
        assert_eq!(calls(&observed)["bottom"], 60);
        observed["functions"].as_array().unwrap().iter().any(timed)
    };
    assert!((0..RUNS).any(has_timed), "no calls are timed");
}

#[test]
fn what_cannot_be_told_costs_nothing_else() {
    let Some(victims) = Victims::compile(&["timeless"]) else { return };
    victims::library();
    for told_to in ["/dev/full", "&-"] {
        let mut shell = Command::new("sh");
        let line = format!("\"$0\" observe --classes scalar -- \"$1\" 2>{told_to}");
        shell.arg("-c").arg(line).arg(env!("CARGO_BIN_EXE_dimmer")).arg(victims.path("timeless"));
        let observed = shell.env("HOME", victims.directory.path()).output().unwrap();
        assert_eq!((observed.status.code(), stdout(&observed)), (Some(7), "worked\n".to_owned()));
    }
}

#[test]
fn a_program_may_bring_what_copies_memory() {
    if !is_x86_feature_detected!("avx2") {
        println!("SKIPPED: what this program copies memory with takes AVX2");
        return;
    }
    let Some(victims) = Victims::compile(&["own_memcpy"]) else { return };
    let observed = victims.observe(&[&victims.path("own_memcpy")]);
    assert!(calls(&observed)["memcpy"] >= 3000);
}

#[test]
fn programs_may_give_up_the_right_to_read_the_time() {
    let Some(victims) = Victims::compile(&["timeless"]) else { return };
    let program = victims.path("timeless");
    for arguments in [&[&*program][..], &[&program, "strictly"]] {
        assert_eq!(calls(&victims.observe(arguments))["work"], 20_100, "{arguments:?}");
    }
}

#[test]
fn programs_may_have_their_code_sealed() {
    let Some(victims) = Victims::compile(&["sealed", "loads", "plugin"]) else { return };
    let [sealed, loads, plugin] = ["sealed", "loads", "plugin"].map(|name| victims.path(name));
    victims.observe(&[&sealed, &loads, &plugin]);
}

#[test]
fn gaps_belong_to_the_function_that_a_call_ended_in() {
    let Some(victims) = Victims::compile(&["goes_on"]) else { return };
    let observed = victims.observe(&[&victims.path("goes_on")]);
    let functions = observed["functions"].as_array().unwrap();
    let named = |name| functions.iter().find(|function| function["name"] == name).unwrap();
    let (starts, ends) = (named("starts"), named("ends"));
    assert_eq!((&starts["calls"], &ends["calls"]), (&30_000_300.into(), &30_000_300.into()));
    assert!(ends["timed"].as_u64() > Some(300), "{ends}");
    assert_eq!((&starts["gap_after_ns"], &starts["lasted_ns"]), (&Value::Null, &Value::Null));
    assert!(ends["gap_after_ns"]["p50"].as_f64() > Some(0.0), "{ends}");
}

#[test]
fn where_nothing_has_an_effect_the_bound_is_told() {
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let model = victims.path("model.toml");
    let rule = |class: &str| {
        format!(
            "[[rule]]\nclass = \"{class}\"\n\
             level = {{ value = \"L0\", source = \"probe: no effect above 31 ns\" }}\n"
        )
    };
    let head = "schema = \"dimmer/model/1\"\nname = \"n\"\nvendor = \"v\"\nmicroarchitecture = \"m\"\n\
                [[level]]\nname = \"L0\"\n";
    let rules = ["scalar", "light-128", "heavy-128"].map(rule);
    std::fs::write(&model, format!("{head}{}", rules.concat())).unwrap();
    let program = victims.path("calls");
    let options = ["--classes", "scalar", "--model", &model, "--", &program];
    let output = observe(victims.directory.path(), &options);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let said = stderr(&output).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("probe: no effect above 31 ns): nothing to gain."), "{said}");
    // All of this code is at most 256 bits wide, so hiding only wider features would change
    // nothing.
    assert!(said.contains(": dimmer run --narrow --width 128 -- "), "{said}");
}

#[test]
fn files_are_counted_alike_whether_or_not_plans_can_be_kept() {
    let Some(victims) = Victims::compile(&["exceptions"]) else { return };
    let program = victims.path("exceptions");
    let home = victims.directory.path().join("home");
    let json = victims.path("counted.json");
    let files = |home: &Path| {
        let to = format!("--json={json}");
        let options = ["--classes", "scalar", &to, "--", &program];
        let observed = observe(home, &options);
        assert_eq!(observed.status.code(), Some(0), "{}", stderr(&observed));
        let observed: Value =
            serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        observed["files"].as_array().unwrap().clone()
    };
    std::fs::create_dir(&home).unwrap();
    let kept = files(&home);
    // A file is in the place of the cache.
    let none = victims.directory.path().join("none");
    std::fs::create_dir(&none).unwrap();
    std::fs::write(none.join(".cache"), "").unwrap();
    assert_eq!(kept, files(&none));
    let hooked = |file: &&Value| file["hooked"].as_u64() > Some(0);
    // The program, the C++ library, and the mathematics library, which the latter needs and which
    // is not called.
    assert!(kept.iter().filter(hooked).count() >= 3, "{kept:?}");
    assert!(kept.iter().any(|file| file["wide_functions"].as_u64() > file["hooked"].as_u64()));
}

#[test]
fn threads_that_run_before_anything_is_hooked_are_seen() {
    let Some(victims) = Victims::compile(&["late", "plugin"]) else { return };
    let [program, plugin, json] = ["late", "plugin", "late.json"].map(|name| victims.path(name));
    let plain = Command::new(&program).arg(&plugin).output().unwrap();
    let place = format!("{plugin}:{}", stdout(&plain).trim());
    let to = format!("--json={json}");
    let arguments = ["--function", &place, &to, "--", &program, &plugin];
    let output = observe(victims.directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let observed: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(calls(&observed), BTreeMap::from([("plugged".into(), 400)]));
    assert_eq!((&observed["threads"], &observed["threads_left_out"]), (&4.into(), &0.into()));
}

#[test]
fn functions_can_be_named() {
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    let program = victims.path("calls");
    let json = victims.path("named.json");
    let observe = |names: &str| {
        let to = format!("--json={json}");
        observe(victims.directory.path(), &["--function", names, &to, "--", &program])
    };
    assert_eq!(observe("many,work").status.code(), Some(7));
    let observed = std::fs::read_to_string(&json).unwrap();
    let observed: Value = serde_json::from_str(&observed).unwrap();
    assert_eq!(calls(&observed), BTreeMap::from([("many".into(), 100), ("work".into(), 2600)]));
    assert_eq!(observed["hooked_names"], serde_json::json!(["many", "work"]));
    // By its place, and, for a function without a name, by the address that `dimmer scan` shows.
    let functions = observed["functions"].as_array().unwrap();
    let work = functions.iter().find(|function| function["name"] == "work").unwrap();
    let address = format!("{:#x}", work["address"].as_u64().unwrap());
    let place = format!("{program}:{address}");
    for name in [place.as_str(), &format!("calls:{address}")] {
        assert_eq!(observe(name).status.code(), Some(7));
        let observed = std::fs::read_to_string(&json).unwrap();
        let observed: Value = serde_json::from_str(&observed).unwrap();
        assert_eq!(calls(&observed), BTreeMap::from([("work".into(), 2600)]));
    }
    let unknown = observe("variadik");
    assert_eq!(unknown.status.code(), Some(125));
    assert!(stderr(&unknown).contains("the nearest are `variadic`"), "{}", stderr(&unknown));
    let own = observe("memcpy");
    assert_eq!(own.status.code(), Some(125), "{}", stderr(&own));
}

#[test]
fn exceptions_pass_through_hooked_frames() {
    let Some(victims) = Victims::compile(&["exceptions"]) else { return };
    let calls = calls(&victims.observe(&[&victims.path("exceptions")]));
    assert_eq!(calls["_Z7throweri"], 3567);
    assert_eq!(calls["_Z21catches_in_the_middlei"], 300);
}

#[test]
fn jumps_and_backtraces_pass_through_hooked_frames() {
    let Some(victims) = Victims::compile(&["jumps"]) else { return };
    let calls = calls(&victims.observe(&[&victims.path("jumps")]));
    assert_eq!((calls["jumper"], calls["deep"]), (61_500, 11));
}

#[test]
fn handlers_of_signals_may_call_hooked_functions_and_jump_out_of_them() {
    let Some(victims) = Victims::compile(&["signals"]) else { return };
    let calls = calls(&victims.observe(&[&victims.path("signals")]));
    assert!(calls["jumper"] >= 300, "{}", calls["jumper"]);
    assert!(calls["busy"] >= 800, "{}", calls["busy"]);
}

#[test]
fn parent_and_child_return_from_the_function_that_forked() {
    let Some(victims) = Victims::compile(&["forks"]) else { return };
    let observed = victims.observe(&[&victims.path("forks")]);
    assert_eq!(calls(&observed)["step"], 200);
    assert_eq!(observed["threads"], 2);
}

#[test]
fn libraries_loaded_while_threads_run_are_hooked_each_time() {
    let Some(victims) = Victims::compile(&["loads", "plugin"]) else { return };
    let plugin = victims.path("plugin");
    let calls = calls(&victims.observe(&[&victims.path("loads"), &plugin]));
    assert_eq!(calls["plugged"], 1000);
    assert!(calls["spin"] > 0);
}

#[test]
fn scripts_and_their_children_are_followed() {
    let home = tempfile::tempdir().unwrap();
    let script = "exit $(($(/bin/echo 3) + 1))";
    let output =
        observe(home.path(), &["--classes", "scalar", "--json", "--", "/bin/sh", "-c", script]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let observed: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(observed["processes"].as_u64() >= Some(2), "{}", observed["processes"]);
}

#[test]
fn a_program_that_a_signal_ends_ends_so_observed() {
    let home = tempfile::tempdir().unwrap();
    let output = observe(home.path(), &["--", "/bin/sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.code(), Some(128 + 15), "{}", stderr(&output));
    let output = observe(home.path(), &["--duration", "0.2s", "--", "/bin/sleep", "60"]);
    assert_eq!(output.status.code(), Some(128 + 15), "{}", stderr(&output));
}

#[test]
fn what_cannot_be_hooked_is_refused_with_the_reason() {
    let home = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], status: i32, why: &str| {
        let output = observe(home.path(), arguments);
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    };
    refused(&["--", "no-such-program-anywhere"], 127, "no program `no-such-program-anywhere`");
    refused(&["--", "./nowhere"], 127, "no program ./nowhere");
    refused(&["--", "/etc/passwd"], 126, "/etc/passwd is not executable");
    refused(
        &["--classes", "heavy-1024", "--", "true"],
        125,
        "unknown instruction class `heavy-1024`",
    );
    refused(&["--duration=-1", "--", "true"], 125, "more than 0");
    let text = home.path().join("text");
    std::fs::write(&text, "neither a script\0 nor a program").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&text, mode).unwrap();
    refused(&["--", text.to_str().unwrap()], 126, "not an ELF file");
}

#[test]
fn a_text_that_names_no_interpreter_is_run_by_the_shell() {
    victims::library();
    let home = tempfile::tempdir().unwrap();
    let text = home.path().join("text");
    for (script, status) in [("exit $(($# + 3))", 5), ("", 0)] {
        victims::write_executable(&text, script.as_bytes());
        let output = observe(home.path(), &["--", text.to_str().unwrap(), "one", "two"]);
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
    }
}

#[test]
fn a_program_has_the_name_and_the_order_of_variables_that_it_has_without_hooks() {
    victims::library();
    let home = tempfile::tempdir().unwrap();
    let shown = |before: &[&str]| {
        let mut env = Command::new("env");
        env.args(["-i", "Z=1", "A=2", "Y=3"]);
        env.args(["HOME", "PATH"].map(|name| match name {
            "HOME" => format!("HOME={}", home.path().display()),
            _ => format!("{name}={}", std::env::var(name).unwrap()),
        }));
        env.args(before).args(["cat", "/proc/self/environ", "/proc/self/cmdline"]);
        let output = env.output().unwrap();
        let own = |entry: &&str| !entry.starts_with("LD_PRELOAD=") && !entry.starts_with("DIMMER_");
        let kept: Vec<_> = stdout(&output).split('\0').filter(own).map(str::to_owned).collect();
        assert!(kept.contains(&"cat".to_owned()), "{}", stderr(&output));
        kept
    };
    assert_eq!(shown(&[env!("CARGO_BIN_EXE_dimmer"), "observe", "--"]), shown(&[]));
}

#[test]
fn running_processes_are_counted_from_outside_or_it_is_said_why_not() {
    let home = tempfile::tempdir().unwrap();
    let refused = observe(home.path(), &["--pid", "4194304", "--duration", "1s"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("no process 4194304"), "{}", stderr(&refused));
    let hooks = observe(home.path(), &["--pid", "1", "--via", "hooks"]);
    assert!(stderr(&hooks).contains("expected uprobes"), "{}", stderr(&hooks));
    let both = observe(home.path(), &["--pid", "1", "--", "true"]);
    assert_eq!(both.status.code(), Some(125), "{}", stderr(&both));
    let mut spinner = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let pid = spinner.id().to_string();
    let options = ["--pid", &pid, "--duration", "0.5s", "--classes", "heavy-128", "--json"];
    let output = observe(home.path(), &options);
    spinner.kill().unwrap();
    spinner.wait().unwrap();
    if output.status.success() {
        let observed: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(observed["source"], "uprobes");
        assert!(observed["exit_status"].is_null());
    } else {
        assert!(stderr(&output).contains("not available"), "{}", stderr(&output));
        println!("SKIPPED: {}", stderr(&output).trim());
    }
}

#[test]
fn statically_linked_programs_are_counted_from_outside() {
    let home = tempfile::tempdir().unwrap();
    let source = home.path().join("main.c");
    // The program starts a thread and a child during the observation; the counters must not prevent
    // that.
    let code = "#include <pthread.h>
                #include <sys/wait.h>
                #include <unistd.h>
                __attribute__((noinline)) double work(double by) {
                    __asm__(\"mulpd %0, %0\" : \"+x\"(by));
                    return by;
                }
                static void *later(void *unused) {
                    usleep(300000);
                    for (int call = 0; call < 1000; call++) work(call);
                    return unused;
                }
                int main(void) {
                    for (int call = 0; call < 1234; call++) work(call);
                    pthread_t thread;
                    if (pthread_create(&thread, 0, later, 0)) return 1;
                    pid_t child = fork();
                    if (child < 0) return 2;
                    later(0);
                    if (child == 0) return 0;
                    waitpid(child, 0, 0);
                    pthread_join(thread, 0);
                    return 7;
                }";
    std::fs::write(&source, code).unwrap();
    let program = home.path().join("static");
    let compile =
        Command::new("cc").args(["-static", "-pthread", "-o"]).arg(&program).arg(&source).output();
    if !compile.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: there is no compiler `cc` that links statically");
        return;
    }
    let program = program.to_str().unwrap();
    let refused = observe(home.path(), &["--", program]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(stderr(&refused).contains("linked statically"), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--via uprobes"), "{}", stderr(&refused));
    let options = ["--via", "uprobes", "--classes", "heavy-128", "--json", "--", program];
    let output = observe(home.path(), &options);
    if output.status.code() == Some(7) {
        let observed: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!((&observed["source"], &observed["exit_status"]), (&"uprobes".into(), &7.into()));
        // The observer finds new threads within some milliseconds. The program's own thread is
        // there from the start.
        let calls = calls(&observed)["work"];
        assert!((2234..=4234).contains(&calls), "{calls}");
    } else {
        assert!(stderr(&output).contains("not available"), "{}", stderr(&output));
        println!("SKIPPED: {}", stderr(&output).trim());
    }
}

#[test]
fn a_program_does_the_same_in_all_ways() {
    let home = tempfile::tempdir().unwrap();
    victims::library();
    let options = ["bench", "program", "--rounds", "3", "--json", "--"];
    let command = ["sh", "-c", "echo done; exit 3"];
    let output = crate::dimmer(home.path(), &[&options[..], &command].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let ways = found["ways"].as_array().unwrap();
    let names: Vec<&Value> = ways.iter().map(|way| &way["way"]).collect();
    assert_eq!(names, ["plain", "observe", "narrow"]);
    assert!(ways.iter().all(|way| way["is_same"] == true), "{found}");
    assert!(ways[0]["lasted_pct"].is_null() && !ways[1]["lasted_pct"].is_null(), "{found}");
}

#[test]
fn hooks_cost_what_can_be_measured() {
    let home = tempfile::tempdir().unwrap();
    let output = crate::dimmer(home.path(), &["bench", "dev", "hook", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    for key in ["plain_ns", "call_ns", "counted_ns", "timed_ns"] {
        assert!(found[key]["median"].is_f64(), "{found}");
    }
}

/// The switch of operators: the library is loaded, and does nothing.
#[test]
fn nothing_is_hooked_if_dimmer_is_switched_off() {
    let Some(victims) = Victims::compile(&["calls"]) else { return };
    victims::library();
    let home = victims.directory.path();
    let mut command =
        command(home, &["observe", "--classes", "scalar", "--", &victims.path("calls")]);
    let output = command.env("HOME", home).env("DIMMER_OFF", "1").output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(stderr(&output).contains("DIMMER_OFF is set"), "{}", stderr(&output));
}
