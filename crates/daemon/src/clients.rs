//! Clients as the server sees them. The server does not trust what a client writes: impossible
//! values are clipped to possible ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use dimmer_policy::server::evidence::Evidence;
use dimmer_policy::server::timing::{Concluded, TimingEvidence};
use dimmer_policy::server::{ClientId, ProgramId, SiteId, Window};
use dimmer_processor::units::whole;
use dimmer_protocol::{Mapped, Sums, Table};
use dimmer_watch::record::Line;

use crate::counters::Counters;
use crate::names::Names;
use crate::recent::{Calls, Recent};

/// What is the same for all clients while their sums are read.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// Time since the last look (ns).
    pub span_ns: u64,
    /// Ticks of the time-stamp counter per nanosecond.
    pub ticks_per_ns: f64,
    /// Limit of the time in a site: no site can be busy for longer than this many CPUs together.
    pub cpus: usize,
    /// The cost of a hand-over (ns); 0 if not known.
    pub hand_over_ns: f64,
    /// The clock of each level, as far as known.
    pub clocks: &'a [f64],
    /// How long a chain takes at the clock that the user's clocks are compared with (ticks).
    pub reference: Option<f64>,
}

/// A site of a client.
#[derive(Clone, Debug)]
pub struct Site {
    /// Number of the site.
    pub id: SiteId,
    /// Name of the site.
    pub name: Arc<str>,
    /// Source line of the site.
    pub line: u32,
    /// Its sums at the last look.
    pub sums: Sums,
    /// Its calls in the last seconds.
    pub recent: Recent,
    /// Time since the first look at it (ns).
    known_ns: u64,
    /// Mean duration of the calls that stayed, when some were sampled last (ns).
    stayed_ns: Option<f64>,
    /// The clock right after it, relative to the highest.
    pub clock: Option<f64>,
    /// The mean duration of the chain right before it, when last measured (ticks).
    before_ticks: Option<f64>,
    /// Timing evidence from which no conclusion was drawn yet.
    timing: TimingEvidence,
}

/// A client that is served.
#[derive(Debug)]
pub struct Client {
    /// Number of the client.
    pub id: ClientId,
    /// The process that has connected.
    pub process: i32,
    /// Id of its user.
    pub user: u32,
    /// The name that it reports.
    pub name: String,
    /// Its systemd service, or else the innermost slice; empty if there is none.
    pub unit: String,
    /// The place of its sum in the totals.
    pub total: usize,
    /// The program's number.
    pub program: ProgramId,
    /// Its shared memory.
    pub table: Mapped<Table>,
    /// The cycles that its process spends at license levels, if they are counted.
    pub counters: Option<Counters>,
    /// Its sites, by place.
    pub sites: Vec<Site>,
    /// Places by site number, for decisions.
    places: BTreeMap<SiteId, Vec<usize>>,
    /// The work that it reported as done, at the last look.
    done: Option<u64>,
    /// The work of the last seconds, if it ever reported any.
    pub done_recently: Option<Recent>,
    /// How often it reported impossible values.
    pub lies: u64,
    /// Its threads' time on wide cores, if it asks for cores.
    pub wide: Option<Wide>,
}

/// The time that threads of a client were on wide cores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wide {
    /// In all, at the last look (ticks).
    ticks: u64,
    recent: Recent,
}

impl Wide {
    /// The time since the last look (ns), by the sum that the client has written.
    fn look(&mut self, ticks: u64, look: &Look<'_>) -> u64 {
        let most_ns = look.span_ns as f64 * look.cpus as f64;
        let ns = ticks.saturating_sub(self.ticks) as f64 / look.ticks_per_ns;
        self.ticks = ticks;
        let number = whole(ns.min(most_ns));
        self.recent.add(look.span_ns, &Calls { number, ..Calls::default() });
        number
    }

    /// The number of threads that were there in the last seconds, on average.
    #[must_use]
    pub fn threads(&self) -> f64 {
        self.recent.per_s() / 1e9
    }
}

/// What a client did since the last look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Windows by site; sites that did nothing are left out.
    pub windows: Vec<(SiteId, Window)>,
    /// Work done per second, by its own account.
    pub metric: Option<f64>,
    /// How long its threads were on wide cores (ns), if it asks for cores.
    pub wide_ns: Option<u64>,
    /// Work done, by its own account.
    pub done: u64,
    /// How often it reported impossible values.
    pub lies: u64,
}

impl Client {
    /// A client without sites.
    #[must_use]
    pub fn new(
        id: ClientId,
        (process, user): (i32, u32),
        name: String,
        program: ProgramId,
        table: Mapped<Table>,
    ) -> Self {
        let (sites, places) = Default::default();
        Self {
            id,
            process,
            user,
            name,
            unit: String::new(),
            total: 0,
            program,
            table,
            counters: None,
            sites,
            places,
            done: None,
            done_recently: None,
            lies: 0,
            wide: None,
        }
    }

    /// The line of a recording that introduces it.
    #[must_use]
    pub fn line(&self) -> Line {
        Line::Join {
            client: self.id.0,
            program: self.program.0,
            user: self.user,
            name: self.name.clone(),
            asks: self.wide.is_some(),
        }
    }

    /// Registers new sites, up to `most`, as far as there is memory for them. Returns the number of
    /// sites. Costs one load if there are no new ones.
    pub fn meet(&mut self, names: &mut Names, most: usize) -> usize {
        let length = self.table.length().min(most);
        if length > self.sites.len() && !self.table.has_memory(self.sites.len()..length) {
            return self.sites.len();
        }
        for place in self.sites.len()..length {
            let written = &self.table.sites[place];
            let (bytes, length) = written.name();
            // A name is for people, and terminals print it.
            let name: String = String::from_utf8_lossy(&bytes[..length])
                .chars()
                .map(|letter| if letter.is_control() { '\u{fffd}' } else { letter })
                .collect();
            let (name, line) = (Arc::from(name), written.line());
            let Some(id) = names.site(self.program, &name, line) else { break };
            self.places.entry(id).or_default().push(place);
            // What it saw before it was registered is not part of this window.
            self.sites.push(Site::new(id, (name, line), written.sums()));
        }
        self.sites.len()
    }

    /// Reads what the sites did. Costs a few loads per site.
    pub fn look(&mut self, look: &Look<'_>) -> Seen {
        let mut seen = Seen::default();
        let counters = self.counters.as_mut();
        let of_process = counters.map_or(Evidence::None, |counters| counters.look(look.span_ns));
        for (site, written) in self.sites.iter_mut().zip(&self.table.sites) {
            let sums = written.sums();
            let news = sums.since(&site.sums);
            let has_shrunk = sums.calls < site.sums.calls;
            site.sums = sums;
            let (mut window, is_cut) = site.window(&news, look);
            if window.calls > 0 {
                window.evidence = window.evidence.or_of_process(of_process);
            }
            seen.lies += u64::from(is_cut || has_shrunk);
            if window.calls > 0 || window.evidence != Evidence::None {
                seen.windows.push((site.id, window));
            }
        }
        self.lies += seen.lies;
        let wide = self.table.head.client.wide();
        seen.wide_ns = self.wide.as_mut().map(|own| own.look(wide, look));
        let done = self.table.head.client.done();
        let more = done.zip(self.done).map(|(now, before)| now.saturating_sub(before));
        self.done = done;
        let rate = |more: u64| more as f64 * 1e9 / look.span_ns as f64;
        seen.done = more.unwrap_or(0);
        seen.metric = more.filter(|more| *more > 0).map(rate);
        if let Some(number) = more {
            let recent = self.done_recently.get_or_insert_default();
            recent.add(look.span_ns, &Calls { number, ..Calls::default() });
        }
        seen
    }

    /// The mean duration of the chain right before regions when last measured, where it was
    /// shortest (ticks).
    #[must_use]
    pub fn chain_ticks(&self) -> Option<f64> {
        self.sites.iter().filter_map(|site| site.before_ticks).min_by(f64::total_cmp)
    }

    /// The places of the site with this number; of all sites if `site` is `None`.
    pub fn places(&self, site: Option<SiteId>) -> impl Iterator<Item = usize> + '_ {
        let some = site.and_then(|site| self.places.get(&site));
        let all = if site.is_none() { 0..self.sites.len() } else { 0..0 };
        some.into_iter().flatten().copied().chain(all)
    }
}

impl Site {
    /// A new site, with its earlier sums.
    #[must_use]
    pub fn new(id: SiteId, (name, line): (Arc<str>, u32), sums: Sums) -> Self {
        Self {
            id,
            name,
            line,
            sums,
            recent: Recent::default(),
            known_ns: 0,
            stayed_ns: None,
            clock: None,
            before_ticks: None,
            timing: TimingEvidence::default(),
        }
    }

    /// What it did, from its sums, and whether these were impossible.
    fn window(&mut self, news: &Sums, look: &Look<'_>) -> (Window, bool) {
        let ns = |ticks: u64| ticks as f64 / look.ticks_per_ns;
        let most_ns = look.span_ns as f64 * look.cpus as f64;
        // No call is shorter than a nanosecond, moved or not.
        let most_calls = whole(most_ns);
        let moved = news.moved.min(news.calls).min(most_calls);
        let calls = news.calls.min(most_calls);
        self.known_ns = self.known_ns.saturating_add(look.span_ns);
        // No call has lasted longer than that. A call under way when the site was registered may
        // have started a look earlier.
        let longest_ns = self.known_ns as f64 + look.span_ns as f64;
        let lasted = |ticks: u64, calls: u64| ns(ticks).min(longest_ns * calls as f64);
        let sampled = (news.stayed, lasted(news.stayed_ticks, news.stayed));
        if news.stayed > 0 {
            self.stayed_ns = Some(sampled.1 / news.stayed as f64);
        }
        let moved_ns = lasted(news.moved_ticks, moved);
        self.recent.add(look.span_ns, &Calls { number: calls, moved: (moved, moved_ns), sampled });
        let stayed_ns = self.stayed_ns.unwrap_or(0.0) * (calls - moved) as f64;
        let in_region_ns = stayed_ns + moved_ns;
        let Concluded { evidence, is_lie, .. } = self.conclude(news, look);
        let worked_ns = (moved_ns - moved as f64 * look.hand_over_ns).clamp(0.0, most_ns);
        let window = Window {
            span_ns: look.span_ns,
            calls,
            in_region_ns: whole(in_region_ns.min(most_ns)),
            moved_calls: moved,
            moved_ns: whole(worked_ns),
            evidence,
        };
        // A sample may be longer than the time between two looks when it ends.
        let is_cut = news.calls > most_calls || news.moved > news.calls.saturating_add(moved + 64);
        (window, is_cut || is_lie)
    }

    /// Draws a conclusion about its code from its clocks.
    fn conclude(&mut self, news: &Sums, look: &Look<'_>) -> Concluded {
        let &Sums { stayed, clocks, before_ticks, after_ticks, .. } = news;
        self.timing.add(&TimingEvidence { stayed, clocks, before_ticks, after_ticks });
        let concluded = self.timing.conclude(look.clocks, look.reference);
        self.before_ticks = concluded.before_ticks.or(self.before_ticks);
        if let Evidence::Clock(ratio) = concluded.evidence {
            self.clock = Some(ratio.min(1.0));
        }
        concluded
    }
}

#[cfg(test)]
mod tests {
    use dimmer_policy::server::timing::LEAST_CHAINS;
    use dimmer_processor::units::LicenseLevel;
    use dimmer_protocol::Owned;

    use super::*;
    use crate::counters::tests::made_up;

    const LOOK: Look<'static> = Look {
        span_ns: 1_000_000,
        ticks_per_ns: 2.0,
        cpus: 4,
        hand_over_ns: 100.0,
        clocks: &[0.9],
        reference: None,
    };

    fn client() -> (Client, Names) {
        let mut names = Names::default();
        let table = Owned::<Table>::new().unwrap().into_memory();
        let program = names.join(1000, "test");
        (Client::new(ClientId(1), (77, 1000), "test".into(), program, table), names)
    }

    #[test]
    fn what_sites_did_since_the_last_look_is_seen() {
        let (mut client, mut names) = client();
        client.table.add(b"parse", 7);
        client.table.sites[0].add_calls(500);
        assert_eq!(client.meet(&mut names, 10), 1);
        assert_eq!(client.look(&LOOK), Seen::default());
        client.table.sites[0].add_calls(30);
        client.table.sites[0].add_stayed(4000);
        for _ in 0..10 {
            client.table.sites[0].add_moved(3000);
        }
        let seen = client.look(&LOOK);
        let window = Window {
            span_ns: 1_000_000,
            calls: 30,
            // 20 calls of 2 us and 10 of 1.5 us.
            in_region_ns: 55_000,
            moved_calls: 10,
            // Of these 1.5 us, 0.1 us is the way.
            moved_ns: 14_000,
            evidence: Evidence::None,
        };
        assert_eq!(seen.windows, [(client.sites[0].id, window)]);
        assert_eq!((seen.metric, client.lies), (None, 0));
        client.table.head.client.add_done(5);
        client.look(&LOOK);
        client.table.head.client.add_done(3);
        assert_eq!(client.look(&LOOK).metric, Some(3000.0));
    }

    #[test]
    fn the_clock_is_told_by_many_chains() {
        let (mut client, mut names) = client();
        client.table.add(b"parse", 7);
        client.meet(&mut names, 10);
        for _ in 0..LEAST_CHAINS {
            client.table.sites[0].add_clock(200, 250);
        }
        let seen = client.look(&LOOK);
        assert_eq!(seen.windows[0].1.evidence, Evidence::Clock(0.8));
        // If the clock was low before as well, the highest clock of others is the reference.
        for _ in 0..LEAST_CHAINS {
            client.table.sites[0].add_clock(250, 250);
        }
        let seen = client.look(&Look { reference: Some(200.0), ..LOOK });
        assert_eq!(seen.windows[0].1.evidence, Evidence::Clock(0.8));
        // Without known levels the clock is no evidence.
        client.table.sites[0].add_calls(1);
        let seen = client.look(&Look { clocks: &[], ..LOOK });
        assert_eq!(seen.windows[0].1.evidence, Evidence::Class(LicenseLevel::new(1)));
    }

    #[test]
    fn cycles_of_its_process_count_where_a_region_tells_no_clock() {
        let (mut client, mut names) = client();
        client.counters = Some(made_up(&[[1000, 200, 0], [2000, 200, 0]]));
        client.table.add(b"clock", 7);
        client.table.add(b"idle", 7);
        client.table.add(b"silent", 7);
        client.meet(&mut names, 10);
        let second = Look { span_ns: 1_000_000_000, ..LOOK };
        let cycles = |at| Evidence::LicenseCycles { all: 1000, at: [at, 0, 0, 0] };
        for at in [200, 0] {
            client.table.sites[0].add_calls(1000);
            client.table.sites[2].add_calls(1000);
            for _ in 0..LEAST_CHAINS {
                client.table.sites[0].add_clock(200, 250);
            }
            let seen = client.look(&second);
            let evidence: Vec<_> =
                seen.windows.iter().map(|(site, window)| (*site, window.evidence)).collect();
            let clock = (client.sites[0].id, Evidence::Clock(0.8));
            assert_eq!(evidence, [clock, (client.sites[2].id, cycles(at))]);
        }
    }

    #[test]
    fn a_clock_that_cannot_be_is_no_evidence() {
        #[track_caller]
        fn check(before: u64, after: u64, lies: u64) {
            let (mut client, mut names) = client();
            client.table.add(b"parse", 7);
            client.meet(&mut names, 10);
            for _ in 0..LEAST_CHAINS {
                client.table.sites[0].add_clock(before, after);
            }
            assert_eq!(client.look(&LOOK), Seen { lies, ..Seen::default() });
            assert_eq!((client.chain_ticks(), client.lies), (None, lies));
        }
        check(1, 250, 1);
        check(0, 250, 1);
        check(250, 0, 1);
        // An interrupt in one of the measurements.
        check(1_000_000, 250, 0);
        check(250, 1_000_000, 0);
    }

    #[test]
    fn processes_of_a_program_have_the_same_sites() {
        let (mut one, mut names) = client();
        one.table.add(b"parse", 7);
        one.meet(&mut names, 10);
        let table = Owned::<Table>::new().unwrap().into_memory();
        table.add(b"other", 9);
        table.add(b"parse", 7);
        let program = names.join(1000, "test");
        let mut two = Client::new(ClientId(2), (78, 1000), "test".into(), program, table);
        two.meet(&mut names, 10);
        assert_eq!(two.sites[1].id, one.sites[0].id);
        assert_eq!(two.places(Some(one.sites[0].id)).collect::<Vec<_>>(), [1]);
        assert_eq!(two.places(None).count(), 2);
    }

    #[test]
    fn whatever_a_client_writes_is_cut_to_what_can_be() {
        let mut chance = fastrand::Rng::with_seed(11);
        let (mut client, mut names) = client();
        for round in 0..200_u32 {
            for _ in 0..20 {
                client.table.add(b"\x1b[2J\xff", 1);
            }
            let site = &client.table.sites[chance.usize(..100)];
            let any = |chance: &mut fastrand::Rng| match chance.u8(..4) {
                0 => 0,
                1 => u64::MAX,
                2 => chance.u64(..1000),
                _ => chance.u64(..),
            };
            site.set(&Sums {
                calls: any(&mut chance),
                stayed: any(&mut chance),
                stayed_ticks: any(&mut chance),
                moved: any(&mut chance),
                moved_ticks: any(&mut chance),
                clocks: any(&mut chance),
                before_ticks: any(&mut chance),
                after_ticks: any(&mut chance),
            });
            client.table.head.client.add_done(any(&mut chance));
            assert!(client.meet(&mut names, 50) <= 50, "{round}");
            let seen = client.look(&LOOK);
            for (_, window) in seen.windows {
                let most = LOOK.span_ns * LOOK.cpus as u64;
                assert!(window.calls <= most && window.moved_calls <= window.calls);
                assert!(window.in_region_ns <= most && window.moved_ns <= most);
                if let Evidence::Clock(ratio) = window.evidence {
                    assert!(ratio.is_finite());
                }
            }
            assert!(seen.metric.is_none_or(f64::is_finite));
            let longest = (f64::from(round) + 2.0) * LOOK.span_ns as f64;
            for site in &client.sites {
                let lasted = [site.recent.stayed_ns(), site.recent.moved_ns()];
                assert!(lasted.into_iter().flatten().all(|ns| ns <= longest * 1.001), "{lasted:?}");
            }
        }
        assert!(client.lies > 0);
        assert!(client.sites.iter().all(|site| !site.name.contains('\x1b')));
    }
}
