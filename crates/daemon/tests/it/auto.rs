//! Trials of mechanisms for all programs at once, with real clients.

use super::*;

/// Windows shorter than usual, so that trials come within a test's patience.
const AUTO: &str = "[auto]\nwindow_ms = 100\nsettle_ms = 50\nperiod_ms = 5000\nrecheck_ms = 500\n\
                    [policy]\nloop = \"auto\"\n";

fn in_force(state: &State) -> Vec<&str> {
    let mechanisms = state.policy.mechanisms.iter().filter(|of| of.is_in_force);
    mechanisms.map(|of| &*of.mechanism).collect()
}

fn moved(state: &State) -> u64 {
    state.clients.iter().flat_map(|client| &client.sites).map(|site| site.moved).sum()
}

#[test]
fn mechanisms_are_tried_for_all_programs_and_cores_go_back() {
    let server = Server::start(AUTO);
    if !server.can_move() {
        return;
    }
    let mut clients = [server.client(120_000), server.client(120_000)];
    // A trial moves the calls of both, and whatever it finds, none is in force again sometime.
    let is_both = |state: &State| {
        let moves = |client: &dimmer_watch::state::Client| client.sites.iter().any(|s| s.moved > 0);
        state.clients.len() == 2 && state.clients.iter().all(moves)
    };
    server.wait(is_both);
    let state = server.wait(|state| in_force(state) == ["none"]);
    assert_eq!(state.cores.dedicated, 0);
    assert!(state.clients.iter().all(|client| client.sites[0].action == "stay"));
    for client in &mut clients {
        client.kill().and_then(|()| client.wait()).unwrap();
    }
    let state = server.wait(|state| state.clients.is_empty());
    assert_eq!((in_force(&state), state.cores.dedicated), (vec!["none"], 0));
}

#[test]
fn a_server_that_only_observes_tries_nothing_until_it_acts() {
    let server = Server::start(&format!("{AUTO}acting_pct = 0\n"));
    if !server.can_move() {
        return;
    }
    let mut client = server.client(120_000);
    let calls = |state: &State| {
        state.clients.iter().flat_map(|client| &client.sites).map(|site| site.calls).sum::<u64>()
    };
    let first = calls(&server.wait(|state| calls(state) > 0));
    let state = server.wait(|state| calls(state) > 3 * first && state.up_s > 2.0);
    assert_eq!((moved(&state), state.cores.dedicated, in_force(&state)), (0, 0, vec!["none"]));
    assert!(state.clients[0].sites[0].reason.starts_with("only observed"));
    assert!(!server.log().contains("dedicated cores"), "{}", server.log());
    std::fs::write(server.directory.path().join("dimmerd.toml"), AUTO).unwrap();
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    server.wait(|state| moved(state) > 0);
    client.kill().and_then(|()| client.wait()).unwrap();
}

#[test]
fn a_recording_of_trials_is_replayed_with_the_same_decisions() {
    let server = Server::start(AUTO);
    if !server.can_move() {
        return;
    }
    let watch = Watch::new(Some(&server.socket())).unwrap();
    watch.record().unwrap();
    let mut text = watch.lines(PATIENCE).unwrap().unwrap();
    let mut client = server.client(120_000);
    let begin = Instant::now();
    while moved(&server.state()) == 0 {
        assert!(begin.elapsed() < PATIENCE, "{}", server.log());
        text.extend(watch.lines(Duration::from_millis(100)).unwrap());
    }
    client.kill().and_then(|()| client.wait()).unwrap();
    server.wait(|state| state.clients.is_empty());
    text.extend(watch.lines(Duration::from_millis(100)).unwrap());
    let (_, replayed) = record::replay(text.as_bytes(), None).unwrap();
    assert!(replayed.is_same_policy && replayed.changes[0] > 0, "{replayed:?}");
    assert_eq!((replayed.different, replayed.changes[0]), (0, replayed.changes[1]), "{text}");
}
