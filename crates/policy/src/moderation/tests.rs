//! Properties of the moderator, over random users, machines and requests.

use super::*;

const MHZ: fn(u64) -> KiloHertz = KiloHertz::from_mhz;

/// Domains of `cpus` CPUs each.
fn domains(count: u32, cpus: u32) -> Vec<Domain> {
    let domain = |at: u32| Domain {
        cpus: (at * cpus..(at + 1) * cpus).map(CpuId::new).collect(),
        slowest: MHZ(800),
        base: Some(MHZ(3000)),
        fastest: MHZ(4000),
    };
    (0..count).map(domain).collect()
}

fn at(user: u32, cpu: u32, mhz: u64) -> Request {
    Request { user, cpu: CpuId::new(cpu), wanted: MHZ(mhz), since: Time::from_ns(0) }
}

fn share(weight: f64, most_percent: u8) -> Share {
    Share { weight, most_percent, may_slow: false }
}

/// Users who may slow others.
fn may_slow(users: &[u32]) -> BTreeMap<u32, Share> {
    let share = |user: &u32| (*user, Share { may_slow: true, ..Share::default() });
    users.iter().map(share).collect()
}

/// How far the virtual time of a user can be ahead of another's (ns): `most` domains that it held
/// when the other began to wait, one more, and the credit that a user may have.
fn lead(most: usize, lightest: f64) -> f64 {
    (most as f64 + 2.0) * QUANTUM.as_f64() / lightest
}

#[test]
fn never_more_are_boosted_no_user_waits_longer_than_the_bound_and_limits_hold() {
    for seed in 0..300 {
        let mut chance = fastrand::Rng::with_seed(seed);
        let (count, most) = (chance.u32(1..6), chance.usize(1..4));
        let users = chance.u32(2..5);
        let shares: BTreeMap<u32, Share> = (0..users)
            .map(|user| {
                let own = share(f64::from(chance.u32(1..5)), chance.u8(76..=100));
                (user, Share { may_slow: chance.bool(), ..own })
            })
            .collect();
        let weights: Vec<f64> = shares.values().map(|share| share.weight).collect();
        let lightest = weights.iter().copied().fold(f64::INFINITY, f64::min);
        let limits = Limits { most_boosted: Some(most), users: shares.clone() };
        let mut moderator = Moderator::new(limits.clone(), domains(count, 1));
        let mut again = Moderator::new(limits, domains(count, 1));
        let (mut now, mut requests) = (0, Vec::new());
        let mut waits_since = BTreeMap::new();
        for step in 0..600 {
            if chance.u8(..3) == 0 {
                let cpus = chance.u32(0..=count * 2);
                requests = (0..cpus)
                    .map(|_| at(chance.u32(0..users), chance.u32(0..count), chance.u64(800..=4000)))
                    .collect();
            }
            let decisions = moderator.decide(Time::from_ns(now), &requests);
            assert_eq!(decisions, again.decide(Time::from_ns(now), &requests), "deterministic");
            let mut boosted = BTreeSet::new();
            let mut has = BTreeMap::new();
            for (request, outcome) in requests.iter().zip(&decisions.outcomes) {
                let limit = u64::from(shares[&request.user].most_percent) * 40_000;
                match *outcome {
                    Outcome::Granted(clock) | Outcome::AtLeast(clock) => {
                        assert!(clock <= request.wanted && clock.khz() <= limit);
                        if clock > MHZ(3000) {
                            boosted.insert(request.cpu);
                            has.insert(request.user, true);
                        }
                    }
                    Outcome::Waits => {
                        has.entry(request.user).or_insert(false);
                    }
                    Outcome::HeldBack | Outcome::Refused => {}
                }
            }
            assert!(boosted.len() <= most, "{seed} {step}");
            waits_since.retain(|user, _| has.get(user) == Some(&false));
            for (user, _) in has.iter().filter(|(_, has)| !**has) {
                let since = *waits_since.entry(*user).or_insert(now);
                // What each other user may have before its virtual time is the waiting one's, a
                // quantum more, and what was held when the wait began.
                let others = (0..users).filter(|other| other != user);
                let before =
                    |other: u32| weights[other as usize] * lead(most, lightest) + QUANTUM.as_f64();
                let sum = others.map(before).sum::<f64>() + most as f64 * QUANTUM.as_f64();
                // At least one domain is held all the time.
                assert!((now - since) as f64 <= sum, "{seed} {step}: {} > {sum}", now - since);
            }
            let next = decisions.again_at.map_or(now + QUANTUM.ns(), Time::ns);
            now = next.min(now + chance.u64(1..=QUANTUM.ns()));
        }
    }
}

#[test]
fn in_the_long_run_boosted_time_is_as_the_weights() {
    for seed in 0..50 {
        let mut chance = fastrand::Rng::with_seed(seed);
        let (most, users) = (chance.usize(1..4), chance.u32(2..5));
        let weights: Vec<f64> = (0..users).map(|_| f64::from(chance.u32(1..9))).collect();
        let of = |user: u32| (user, share(weights[user as usize], 100));
        let limits = Limits { most_boosted: Some(most), users: (0..users).map(of).collect() };
        // Each user has as many threads of its own as may be boosted, so it can use its share.
        let count = users * u32::try_from(most).unwrap();
        let mut moderator = Moderator::new(limits, domains(count, 1));
        let requests: Vec<Request> = (0..count).map(|cpu| at(cpu % users, cpu, 4000)).collect();
        let (mut now, mut had) = (0, vec![0.0; users as usize]);
        while now < 4_000 * QUANTUM.ns() {
            let decisions = moderator.decide(Time::from_ns(now), &requests);
            let next = decisions.again_at.expect("others wait").ns();
            for (request, outcome) in requests.iter().zip(&decisions.outcomes) {
                if *outcome == Outcome::AtLeast(MHZ(4000)) {
                    had[request.user as usize] += (next - now) as f64;
                }
            }
            now = next;
        }
        let lightest = weights.iter().copied().fold(f64::INFINITY, f64::min);
        let virtual_times: Vec<f64> =
            had.iter().zip(&weights).map(|(had, own)| had / own).collect();
        let most_of = virtual_times.iter().copied().fold(0.0, f64::max);
        let least_of = virtual_times.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(most_of - least_of <= lead(most, lightest), "{seed}: {virtual_times:?}");
    }
}

/// One user wants as much as it has, the other one more than there is: both are charged, so the
/// first keeps it.
#[test]
fn a_user_who_wants_little_keeps_it_while_another_wants_more_than_there_is() {
    let limits = Limits { most_boosted: Some(4), ..Limits::default() };
    let mut moderator = Moderator::new(limits, domains(9, 1));
    let requests: Vec<Request> = (0..9).map(|cpu| at(u32::from(cpu > 0), cpu, 4000)).collect();
    let (mut now, mut of_first, mut all) = (0, 0, 0);
    while now < 1_000 * QUANTUM.ns() {
        let decisions = moderator.decide(Time::from_ns(now), &requests);
        let next = decisions.again_at.expect("the second user waits").ns();
        if decisions.outcomes[0] != Outcome::Waits {
            of_first += next - now;
        }
        all += next - now;
        now = next;
    }
    // Until the virtual times differ by a quantum, the order of the requests decides.
    assert!(all - of_first <= 2 * QUANTUM.ns(), "{of_first} of {all}");
}

/// A user who asks alone has no credit to lose: a second one who comes shares from then on.
#[test]
fn a_user_who_asks_alone_is_not_charged_while_its_own_requests_wait() {
    let limits = Limits { most_boosted: Some(1), ..Limits::default() };
    let mut moderator = Moderator::new(limits, domains(3, 1));
    let alone = [at(1, 0, 4000), at(1, 1, 4000)];
    let mut now = 0;
    for _ in 0..100 {
        now = moderator.decide(Time::from_ns(now), &alone).again_at.expect("it waits").ns();
    }
    let both = [alone[0], alone[1], at(2, 2, 4000)];
    let mut had = [0, 0];
    for _ in 0..100 {
        let decisions = moderator.decide(Time::from_ns(now), &both);
        let next = decisions.again_at.expect("one waits").ns();
        let second = usize::from(decisions.outcomes[2] != Outcome::Waits);
        had[second] += next - now;
        now = next;
    }
    assert!(had[0].abs_diff(had[1]) <= 2 * QUANTUM.ns(), "{had:?}");
}

/// Over random requests: a clock is in force exactly, so that it may be slower than without a
/// request, only where each CPU of the domain has a request of a user who may slow others.
#[test]
fn no_request_slows_a_cpu_for_which_no_user_who_may_asks() {
    let (mut exact, mut others) = (0, 0);
    for seed in 0..200 {
        let mut chance = fastrand::Rng::with_seed(seed);
        let (count, cpus) = (chance.u32(1..4), chance.u32(1..3));
        let most_boosted = chance.bool().then(|| chance.usize(0..3));
        let limits = Limits { most_boosted, users: may_slow(&[0, 1]) };
        let mut moderator = Moderator::new(limits, domains(count, cpus));
        for step in 0..50 {
            let asked = chance.u32(0..=count * cpus * 2);
            let requests: Vec<Request> = (0..asked)
                .map(|_| at(chance.u32(0..4), chance.u32(0..count * cpus), chance.u64(800..=4000)))
                .collect();
            let now = Time::from_ns(step * QUANTUM.ns());
            let outcomes = moderator.decide(now, &requests).outcomes;
            for (request, outcome) in requests.iter().zip(&outcomes) {
                let Outcome::Granted(_) = outcome else {
                    others += 1;
                    continue;
                };
                exact += 1;
                assert!(request.user < 2, "{seed} {step}: {request:?}");
                let domain = request.cpu.index() / cpus;
                for cpu in domain * cpus..(domain + 1) * cpus {
                    let has = |own: &Request| own.cpu.index() == cpu && own.user < 2;
                    assert!(requests.iter().any(has), "{seed} {step}: {cpu} {request:?}");
                }
            }
        }
    }
    assert!(exact > 0 && others > 0);
}

#[test]
fn a_slow_clock_waits_for_the_other_cpus_of_its_domain() {
    #[track_caller]
    fn check(users: &[u32], requests: &[Request], expected: &[Outcome]) {
        let limits = Limits { most_boosted: Some(0), users: may_slow(users) };
        let mut moderator = Moderator::new(limits, domains(1, 2));
        assert_eq!(moderator.decide(Time::from_ns(1), requests).outcomes, expected);
    }
    let slow = Outcome::Granted(MHZ(800));
    check(&[1, 2], &[at(1, 0, 800)], &[Outcome::HeldBack]);
    check(&[1, 2], &[at(1, 0, 800), at(2, 1, 800)], &[slow, slow]);
    check(&[1], &[at(1, 0, 800), at(2, 1, 800)], &[Outcome::HeldBack; 2]);
    check(&[], &[at(1, 0, 800), at(2, 1, 800)], &[Outcome::HeldBack; 2]);
    // Another user's thread on one of the CPUs waits for a fast clock.
    let held = [Outcome::HeldBack, Outcome::HeldBack, Outcome::Waits];
    check(&[1, 2], &[at(1, 0, 800), at(1, 1, 800), at(2, 1, 4000)], &held);
}

#[test]
fn a_boosted_clock_is_exact_where_nothing_else_is_slowed() {
    #[track_caller]
    fn check(cpus: u32, requests: &[Request], expected: &[Outcome]) {
        let limits = Limits { most_boosted: None, users: may_slow(&[1]) };
        let mut moderator = Moderator::new(limits, domains(1, cpus));
        assert_eq!(moderator.decide(Time::from_ns(1), requests).outcomes, expected);
    }
    let (exact, least) = (Outcome::Granted(MHZ(3500)), Outcome::AtLeast(MHZ(3500)));
    check(1, &[at(1, 0, 3500)], &[exact]);
    check(1, &[at(2, 0, 3500)], &[least]);
    check(2, &[at(1, 0, 3500)], &[least]);
    check(2, &[at(1, 0, 3500), at(1, 1, 3500)], &[exact; 2]);
    check(2, &[at(1, 0, 3500), at(2, 1, 3500)], &[least; 2]);
}

#[test]
fn a_user_who_may_have_nothing_gets_nothing() {
    let slow = Share { may_slow: true, ..share(1.0, 75) };
    let users = BTreeMap::from([(1, share(1.0, 0)), (2, slow), (4, share(1.0, 75))]);
    let limits = Limits { most_boosted: Some(0), users };
    let mut moderator = Moderator::new(limits, domains(4, 1));
    let requests = [at(1, 0, 4000), at(2, 1, 4000), at(3, 2, 4000), at(3, 9, 800), at(4, 3, 4000)];
    let outcomes = moderator.decide(Time::from_ns(1), &requests).outcomes;
    let granted = Outcome::Granted(MHZ(3000));
    let expected = [Outcome::Refused, granted, Outcome::Waits, Outcome::Refused, Outcome::HeldBack];
    assert_eq!(outcomes, expected);
}
