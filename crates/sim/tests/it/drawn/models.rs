//! Models: those that come with Dimmer, and changes of them.

use std::path::Path;

use dimmer_processor::model::{self, Model, Sourced, builtin};
use dimmer_processor::units::LicenseLevel;

use super::Draws;

/// A model that comes with Dimmer.
pub(crate) fn shipped(name: &str) -> Model {
    Model::parse(Path::new(name), builtin(name).unwrap()).unwrap()
}

pub(crate) fn made_up<T>(value: T) -> Option<Sourced<T>> {
    Some(Sourced { value, source: "made up".to_owned(), guess: true, ci95: None })
}

/// The model with nothing left to chance.
pub(crate) fn certain(mut model: Model) -> Model {
    for rule in &mut model.rules {
        (rule.instructions_log_sd, rule.grant_log_sd) = (None, None);
    }
    model.request.missed_share = None;
    model.release.extended_share = None;
    model
}

/// The model with the same clocks whatever number of cores is active.
pub(crate) fn flat(mut model: Model) -> Model {
    for level in &mut model.levels {
        level.bins.truncate(1);
        for bin in &mut level.bins {
            (bin.from_cores, bin.cores) = (1, 64);
        }
    }
    model
}

/// Adds P-states to a model, and what changing between them takes.
pub(super) fn add_pstates(model: &mut Model, draws: &mut Draws) {
    let mhz = [4000, 3000, 2200, 1200];
    let pstate = |number: usize| model::PState {
        name: format!("P{number}"),
        mhz: made_up(mhz[number]).unwrap(),
        mv: None,
        needs_idle: None,
    };
    model.pstates = (0..2 + draws.below(3)).map(pstate).collect();
    for from in &model.pstates {
        for to in &model.pstates {
            if from != to {
                let request_ns = draws.below(20_000) as u64;
                let total_ns = request_ns + draws.below(20_000) as u64;
                model.transitions.push(model::Transition {
                    from: from.name.clone(),
                    to: to.name.clone(),
                    request_ns: draws.is(0.9).then(|| made_up(request_ns)).flatten(),
                    total_ns: draws.is(0.9).then(|| made_up(total_ns)).flatten(),
                });
            }
        }
    }
    let domains = [model::Domain::Core, model::Domain::Package];
    model.clock.domain = made_up(domains[draws.below(2)]);
}

/// A model of which something is different than in those that come with Dimmer, with nothing left
/// to chance.
pub(crate) fn draw_model(draws: &mut Draws) -> Model {
    let name = ["i9-7940x", "xeon-gold-6130"][draws.below(2)];
    let mut model = certain(shipped(name));
    if draws.is(0.3) {
        model = flat(model);
    }
    let request = &mut model.request;
    if draws.is(0.3) {
        request.path = made_up(model::Path::Directly);
    }
    if draws.is(0.4) {
        request.slot_ns = None;
    }
    if draws.is(0.2) {
        request.stall_ns = draws.is(0.5).then(|| made_up(3_000)).flatten();
    }
    if draws.is(0.3) {
        request.chained_throttle_factor = draws.is(0.5).then(|| made_up(0.5)).flatten();
    }
    let release = &mut model.release;
    if draws.is(0.2) {
        release.stall_ns = None;
    }
    if draws.is(0.3) {
        release.hold_ns = made_up(20_000 + draws.below(800_000) as u64);
    }
    if draws.is(0.2) {
        release.recurrence_ns = made_up(50_000 + draws.below(2_000_000) as u64);
        release.recurrence_after_ns = draws.is(0.7).then(|| made_up(3_000_000)).flatten();
        release.recurrence_slowdown = draws.is(0.5).then(|| made_up(0.3 * draws.share())).flatten();
    }
    if draws.is(0.3) {
        let long = |draws: &mut Draws| model::LongRecurrence {
            level: made_up(LicenseLevel::new([1, 2][draws.below(2)])).unwrap(),
            burst_ns: made_up(draws.below(200_000) as u64).unwrap(),
            gap_ns: made_up(draws.below(5_000_000) as u64).unwrap(),
            slowdown: made_up(0.3 * draws.share()).unwrap(),
        };
        model.long_recurrences = (0..1 + draws.below(3)).map(|_| long(draws)).collect();
    }
    if draws.is(0.2) {
        model.levels[2].issue_ratio = made_up(0.5);
    }
    if draws.is(0.2) {
        let level = &mut model.levels[1];
        (level.bins, level.clock_ratio) = (Vec::new(), made_up(0.9));
    }
    if draws.is(0.2) {
        model.rules[0].grant_ns = None;
    }
    if draws.is(0.3) {
        (model.shape.packages, model.shape.cores) = (made_up(4), made_up(2));
    }
    model
}

/// Adds what it costs to move threads, or a part of that.
pub(super) fn add_moves(model: &mut Model, draws: &mut Draws) {
    let prices = [
        ("thread by the kernel", 20_000.0),
        ("cache-line within a cluster", 1000.0),
        ("cache-line within a package", 200.0),
        ("cache-line between packages", 400.0),
        ("cache-line between siblings", 1000.0),
    ];
    model.moves.clear();
    for (kind, most_ns) in prices {
        if draws.is(0.7) {
            let ns = made_up(most_ns * draws.share()).unwrap();
            model.moves.push(model::Move { kind: kind.to_owned(), ns });
        }
    }
    model.shape.l2_kib = draws.is(0.8).then(|| made_up(1024)).flatten();
}
