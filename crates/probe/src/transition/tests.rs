//! Transitions of made-up cores, whose delays must be found.

use super::*;

/// Time of a window at 1 GHz (ns).
const WORK: f64 = 2000.0;

/// A core with clocks of 1, 2 and 4 GHz. A request takes a time and returns; the clock changes
/// abruptly after another time.
struct Made {
    clocks: Vec<KiloHertz>,
    now: f64,
    /// The clock in force, and the one that comes, and when.
    ghz: f64,
    next: (f64, f64),
    /// How long a request takes (ns), and from then on until the clock is there, by from and to.
    request_ns: f64,
    delay_ns: fn(f64, f64) -> f64,
    /// If the clock changes at multiples of this time alone (ns).
    grid_ns: Option<f64>,
    /// Every window with this number is longer by an interrupt.
    interrupted: u64,
    windows: u64,
    random: fastrand::Rng,
    /// Requests that do not change the clock.
    ignored: Option<usize>,
    /// Whether the machine refuses all.
    refuses: bool,
    /// When windows take a tenth longer.
    disturbed: std::ops::Range<f64>,
}

impl Made {
    fn new(delay_ns: fn(f64, f64) -> f64) -> Self {
        Self {
            clocks: [1000, 2000, 4000].map(KiloHertz::from_mhz).to_vec(),
            now: 0.0,
            ghz: 1.0,
            next: (1.0, 0.0),
            request_ns: 700.0,
            delay_ns,
            grid_ns: None,
            interrupted: 97,
            windows: 0,
            random: fastrand::Rng::with_seed(7),
            ignored: None,
            refuses: false,
            disturbed: 0.0..0.0,
        }
    }
}

impl Core for Made {
    type Error = &'static str;

    fn clocks(&self) -> &[KiloHertz] {
        &self.clocks
    }

    fn step_ns(&self) -> f64 {
        10.0
    }

    fn now_ns(&mut self) -> f64 {
        self.now
    }

    fn request(&mut self, point: usize) -> Result<(), Self::Error> {
        if self.refuses {
            return Err("no");
        }
        self.now += self.request_ns;
        if self.ignored != Some(point) {
            let ghz = self.clocks[point].khz() as f64 / 1e6;
            let at = match self.grid_ns {
                Some(grid) => (self.now / grid).ceil() * grid,
                None => self.now + (self.delay_ns)(self.ghz, ghz),
            };
            self.next = (ghz, at);
        }
        Ok(())
    }

    fn window(&mut self) -> Window {
        let begin_ns = self.now;
        if self.now >= self.next.1 {
            self.ghz = self.next.0;
        }
        self.windows += 1;
        let jitter = 1.0 + 0.01 * self.random.f64();
        let interrupt = if self.windows.is_multiple_of(self.interrupted) { 5000.0 } else { 0.0 };
        let slow = if self.disturbed.contains(&begin_ns) { 1.1 } else { 1.0 };
        let ns = ((WORK / self.ghz * jitter * slow + interrupt) / 10.0).round() * 10.0;
        self.now += ns;
        Window { begin_ns, ns }
    }

    fn random(&mut self) -> f64 {
        self.random.f64()
    }
}

struct Patient;

impl Observer for Patient {
    fn begins(&mut self, _what: &str, _done: f64) {}

    fn wants_stop(&self) -> bool {
        false
    }
}

fn median(samples: &Samples) -> f64 {
    samples.quantile(0.5).unwrap()
}

/// As on the paper's first processor: up is slow, down is fast (table 4).
#[test]
fn finds_the_delay_of_each_pair_and_direction() {
    let delay = |from, to| if to > from { 10_000.0 * (to - from) } else { 1500.0 };
    let mut core = Made::new(delay);
    let found = measure(&mut core, 40, &mut Patient).unwrap();
    assert!(!found.interrupted);
    assert_eq!(found.pairs.len(), 6);
    for pair in &found.pairs {
        let ghz = |point: usize| [1.0, 2.0, 4.0][point];
        let (from, to) = (ghz(pair.from), ghz(pair.to));
        assert_eq!(median(&pair.request_ns), 700.0);
        assert_eq!((pair.request_ns.len(), pair.transition_ns.len(), pair.unseen), (40, 40, 0));
        // The window that sees the new clock begins up to one old window later.
        let expected = 700.0 + delay(from, to);
        let late = median(&pair.transition_ns) - expected;
        assert!((0.0..=WORK / from * 1.02).contains(&late), "{from} to {to}: {late} ns late");
    }
}

/// Some processors change clocks at set moments alone: here every half a millisecond.
#[test]
fn requests_come_at_random_moments() {
    let mut core = Made::new(|_, _| f64::NAN);
    core.grid_ns = Some(500_000.0);
    let found = measure(&mut core, 100, &mut Patient).unwrap();
    for pair in &found.pairs {
        let quantile = |q| pair.transition_ns.quantile(q).unwrap();
        assert!(quantile(0.1) < 150_000.0 && quantile(0.9) > 350_000.0, "{pair:?}");
        assert!(quantile(1.0) < 500_000.0 + 2.0 * WORK + 5000.0, "{pair:?}");
    }
}

#[test]
fn clocks_that_windows_cannot_tell_apart_have_requests_alone() {
    let mut core = Made::new(|_, _| 0.0);
    core.clocks = [2000, 2001].map(KiloHertz::from_mhz).to_vec();
    let found = measure(&mut core, 5, &mut Patient).unwrap();
    for pair in &found.pairs {
        assert!(!pair.is_distinct && pair.transition_ns.is_empty(), "{pair:?}");
        assert_eq!((pair.request_ns.len(), pair.unseen), (5, 0));
    }
}

#[test]
fn a_ratio_has_the_uncertainty_of_both_points() {
    let point = |mhz, window_ns| Point { clock: KiloHertz::from_mhz(mhz), window_ns };
    let spread = |middle: f64| (-50..=50).map(|at| middle + f64::from(at)).collect::<Samples>();
    let (first, second) = (point(1000, spread(2000.0)), point(2000, spread(1000.0)));
    let exact = point(1000, Samples::new(vec![2000.0; 101]));
    let width = |of: &Point| {
        let ratio = second.ratio_to(of).unwrap();
        assert_eq!(ratio.median, 2.0);
        assert!(ratio.ci95.0 < 2.0 && ratio.ci95.1 > 2.0, "{ratio:?}");
        ratio.ci95.1 - ratio.ci95.0
    };
    assert!(width(&first) > width(&exact));
    assert_eq!(first.ratio_to(&first), Some(Estimate { median: 1.0, ci95: (1.0, 1.0) }));
    assert_eq!(point(1, Samples::default()).ratio_to(&first), None);
}

/// Something else makes windows longer for a while, from the last point's first pass on.
#[test]
fn a_disturbance_in_the_middle_of_the_passes_is_no_clock() {
    let mut core = Made::new(|_, _| 0.0);
    core.clocks = [2000, 2001].map(KiloHertz::from_mhz).to_vec();
    // The second to the third of four times at a point; windows are timed at the end of each.
    let at = |times: f64| times * (SETTLE_NS + REFERENCE as f64 * WORK / 2.0);
    core.disturbed = at(1.2)..at(3.2);
    let found = measure(&mut core, 1, &mut Patient).unwrap();
    assert!(found.pairs.iter().all(|pair| !pair.is_distinct), "{:?}", found.pairs);
}

#[test]
fn a_clock_that_never_comes_is_counted_and_ends() {
    let mut core = Made::new(|_, _| 0.0);
    core.clocks.truncate(2);
    let points = measure(&mut core, 1, &mut Patient).unwrap().points;
    core.ignored = Some(1);
    core.next = (1.0, 0.0);
    let (slow, fast) = (points[0].window_ns.clone(), points[1].window_ns.clone());
    let fast = Quartiles::of(&fast, 10.0);
    core.request(1).unwrap();
    assert_eq!(confirmed(&mut core, fast, |_| true), None);
    assert!(confirmed(&mut core, Quartiles::of(&slow, 10.0), |_| true).is_some());
}

#[test]
fn a_refused_request_ends_the_measurement() {
    let mut core = Made::new(|_, _| 0.0);
    core.refuses = true;
    assert_eq!(measure(&mut core, 1, &mut Patient), Err("no"));
}

/// A window that is over too early, as if the clock were there, and 20 old ones after it.
#[test]
fn a_single_window_of_the_new_clock_is_no_transition() {
    let quartiles = |low, high| Quartiles { low, high };
    assert!(quartiles(990.0, 1010.0).is_apart_from(quartiles(495.0, 505.0)));
    assert!(!quartiles(990.0, 1010.0).is_apart_from(quartiles(1010.0, 1020.0)));
    let mut core = Made::new(|_, _| 40_000.0);
    core.ghz = 2.0;
    core.request(2).unwrap();
    let begin = core.now;
    let odd = begin + 20_000.0;
    let mut core = Odd { core, at: odd };
    let is_new = |ns| ns < 700.0;
    let there = confirmed(&mut core, quartiles(480.0, 520.0), is_new).unwrap();
    let late = there - begin - 40_000.0;
    assert!((0.0..=1020.0).contains(&late), "{late}");
}

/// As another core, but for one window.
struct Odd {
    core: Made,
    at: f64,
}

impl Core for Odd {
    type Error = &'static str;

    fn clocks(&self) -> &[KiloHertz] {
        self.core.clocks()
    }

    fn step_ns(&self) -> f64 {
        self.core.step_ns()
    }

    fn now_ns(&mut self) -> f64 {
        self.core.now_ns()
    }

    fn request(&mut self, point: usize) -> Result<(), Self::Error> {
        self.core.request(point)
    }

    fn window(&mut self) -> Window {
        let window = self.core.window();
        if window.begin_ns < self.at {
            return window;
        }
        self.at = f64::INFINITY;
        Window { ns: 500.0, ..window }
    }

    fn random(&mut self) -> f64 {
        self.core.random()
    }
}
