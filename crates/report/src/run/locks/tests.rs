//! The text for made-up runs.

use dimmer_launch::measured::{Means, Measured};
use dimmer_policy::boost::site::AtSite;
use dimmer_processor::units::Nanos;
use expect_test::{Expect, expect};

use super::*;

pub(super) fn site() -> LockSite {
    LockSite {
        kind: Kind::Mutex,
        function: Some("take".to_owned()),
        file: Some("/usr/bin/server".into()),
        offset: 0x1234,
        acquisitions: 1000,
        contended: 600,
        waited: Nanos::from_ns(9_000_000),
        holds: 1000,
        held: Nanos::from_ns(12_000_000),
        longest: Nanos::from_ns(40_000),
        wanted: 500,
        strategy: AtSite::One,
        requests: [0, 1000, 1000],
        boosted: 1000,
        carried: 250,
        fast: Nanos::from_ns(2_000_000),
        outside: Nanos::ZERO,
        measured: None,
        verdicts: Vec::new(),
    }
}

#[track_caller]
fn check(locks: &Locks, expected: Expect) {
    expected.assert_eq(&text(locks, Screen::file(100)));
}

#[test]
fn a_run_that_only_observed_has_no_requests() {
    let locks = Locks { processes: 1, sites: vec![site()], ..Locks::default() };
    check(
        &locks,
        expect![[r#"
        Boost: 600 of 1000 acquisitions at 1 site had to wait, 9.00 ms in all.
        Function  file    kind   taken  waited  for      held     at most
        take      server  mutex   1000  60.0 %  9.00 ms  12.0 µs  40.0 µs
        --model MODEL shows which of these are held so long that a faster clock for the holder would pay;
        `dimmer sim model list` lists models.
    "#]],
    );
}

#[test]
fn measured_stalls_are_said_to_count() {
    let model = dimmer_host::models::named("fx-8120").unwrap();
    let means = Means { stalled_ratio: Some(0.5), ..Means::default() };
    let measured = Some(Measured { sampled: 9, time_ns: 12_000.0, means: Some(means) });
    let stalled = LockSite { measured, ..site() };
    let locks = Locks {
        sites: vec![site(), stalled],
        advice: Some(Advice::new(&model).unwrap()),
        ..Locks::default()
    };
    let told = advised(&locks);
    assert!(told.ends_with("for 0 of 2 sites. Measured stalls count, at 1 site."), "{told}");
}

#[test]
fn what_was_requested_is_in_the_report() {
    let carried = Carried {
        back_end: "cpufreq",
        requests: 1990,
        refused: 3,
        unplaced: 0,
        took: Nanos::from_ns(900),
        delay: Nanos::from_ns(80_000),
        slow: Nanos::from_ns(0),
        fast: Nanos::from_ns(12_500_000),
    };
    let quiet = LockSite { boosted: 0, carried: 0, requests: [0; 3], ..site() };
    let sites = vec![site(), quiet];
    check(
        &Locks { processes: 1, sites, carried: Some(carried), ..Locks::default() },
        expect![[r#"
            Boost: 1200 of 2000 acquisitions at 2 sites had to wait, 18.0 ms in all.
            Function  file    kind   taken  waited  for      held     at most  in time
            take      server  mutex   1000  60.0 %  9.00 ms  12.0 µs  40.0 µs  250 of 1000
            take      server  mutex   1000  60.0 %  9.00 ms  12.0 µs  40.0 µs            –
            --model MODEL shows which of these are held so long that a faster clock for the holder would pay;
            `dimmer sim model list` lists models.
            Threads requested the fast clock 1000 times, the slow one 0 times, and ended these 1000 times, by
            cpufreq. 1990 were carried out, 80.0 µs after the request, which took its thread 900 ns (medians);
            others were followed by the next one first. The fast clock stayed requested for 12.5 ms, the slow
            one for 0.0 ns. 3 the machine did not take.
        "#]],
    );
}

#[test]
fn without_requests_there_are_no_times_of_them() {
    let quiet = LockSite { boosted: 0, carried: 0, requests: [0; 3], ..site() };
    let carried = Some(Carried { back_end: "uclamp", ..Carried::default() });
    let told = text(&Locks { sites: vec![quiet], carried, ..Locks::default() }, Screen::file(100));
    assert!(told.ends_with("Threads requested no clock, by uclamp.\n"), "{told}");
}

#[test]
fn a_section_from_function_to_function_has_the_time_outside_of_it() {
    let section = LockSite {
        kind: Kind::Section,
        function: Some("take_gil..drop_gil".to_owned()),
        outside: Nanos::from_ns(30_000_000),
        strategy: AtSite::Nothing,
        requests: [0; 3],
        boosted: 0,
        carried: 0,
        ..site()
    };
    check(
        &Locks { processes: 1, sites: vec![section], ..Locks::default() },
        expect![[r#"
        Boost: 600 of 1000 acquisitions at 1 site had to wait, 9.00 ms in all.
        Function            file    kind     taken  waited  for      held     at most
        take_gil..drop_gil  server  section   1000  60.0 %  9.00 ms  12.0 µs  40.0 µs
        take_gil..drop_gil: threads waited for it for 9.00 ms, were in it for 12.0 ms, and outside for
        30.0 ms until the next wait.
        --model MODEL shows which of these are held so long that a faster clock for the holder would pay;
        `dimmer sim model list` lists models.
    "#]],
    );
}
