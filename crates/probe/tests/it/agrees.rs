//! Checks that runs on different days agree about the same processor.

use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::{Detail, Outcome};

use crate::fake::{Fake, Governor, XEON_6};
use crate::finds::{HEAVY, probe};

/// Largest difference between medians of runs on one processor (relative to the smallest).
const APART: f64 = 0.15;

/// Code is cold after gaps longer than 3 ms: a burst then takes 700 ns more, whatever it executes.
const COLD: (f64, f64) = (3e6, 700.0);

/// Outcomes of runs on three days.
fn on_three_days(mode: Mode, fake: fn() -> Fake) -> [Outcome; 3] {
    let run = |day| probe(&mut fake().seeded(day), &[mode], &[HEAVY]).outcomes.remove(0);
    std::thread::scope(|scope| {
        [1, 2, 3].map(|day| scope.spawn(move || run(day))).map(|day| day.join().unwrap())
    })
}

#[track_caller]
fn assert_agree(what: &str, found: [f64; 3]) {
    let [least, _, most] = {
        let mut sorted = found;
        sorted.sort_by(f64::total_cmp);
        sorted
    };
    assert!(most / least - 1.0 < APART, "{what}: {found:?}");
}

/// Like the Xeon 6, on a machine with neighbours: the effect comes and goes, and the clock wanders.
fn shared() -> Fake {
    let mut fake = Fake::new(Some(XEON_6));
    (fake.present, fake.wanders) = (0.3, true);
    fake
}

#[test]
fn about_what_an_episode_costs() {
    let episodes = on_three_days(Mode::Episode, shared).map(|outcome| match outcome.detail {
        Detail::Episode(episode) => episode,
        other => panic!("{other:?}"),
    });
    assert_agree("cost", [0, 1, 2].map(|day| episodes[day].extra_ns.estimate.median));
    let delay = |day: usize| episodes[day].release_delay_ns.as_ref().unwrap().estimate.median;
    assert_agree("release delay", [0, 1, 2].map(delay));
    let stall = |day: usize| episodes[day].release_stall_ns.as_ref().unwrap().estimate.median;
    assert_agree("release stall", [0, 1, 2].map(stall));
}

/// Like the Xeon 6, or a processor without effect, where code gets cold and the clock wanders.
fn cold(governor: Option<Governor>) -> Fake {
    let mut fake = Fake::new(governor);
    (fake.cold, fake.wanders) = (Some(COLD), true);
    fake
}

fn regime_change(outcome: &Outcome) -> Option<f64> {
    match &outcome.detail {
        Detail::Recurrence(recurrence) => recurrence.regime_change_us.map(|change| change.median),
        other => panic!("{other:?}"),
    }
}

#[test]
fn about_where_the_regime_changes_though_code_gets_cold() {
    let outcomes = on_three_days(Mode::Recurrence, || cold(Some(XEON_6)));
    assert_agree("regime change", outcomes.map(|outcome| regime_change(&outcome).unwrap()));
}

#[test]
fn that_cold_code_alone_is_no_effect() {
    let outcome = probe(&mut cold(None), &[Mode::Recurrence], &[HEAVY]).outcomes.remove(0);
    assert!(!outcome.effect);
    assert_eq!(regime_change(&outcome), None);
}
