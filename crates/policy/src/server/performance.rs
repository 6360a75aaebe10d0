//! How well clients do, and whether all of them together do better than before (paper 001 §4.2.4,
//! §4.3.3).
//!
//! The paper adds up one value per client. Then a client counts by how often it calls, and a change
//! of one client outweighs the ruin of another (§6.3: "the metric of NGINX had more weight").
//! [`Mixing::Fair`] takes the geometric mean of each client's change instead. It has no unit and no
//! weight (Fleming and Wallace, "How not to lie with statistics: the correct way to summarize
//! benchmark results", 1986), and it bounds what one client can claim.

use std::collections::BTreeMap;

use super::UserId;

/// The measure of a client's performance, unless the client reports a value itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// One over the mean time of a call of a marked region: "average time of execution".
    RegionTime,
    /// Calls per time: "for applications that have only a small percentage of code marked".
    CallRate,
}

/// How clients' values are combined into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixing {
    /// Their sum (paper 001 §4.3.3).
    Sum,
    /// The geometric mean of the changes: of users, and of each user's clients.
    Fair,
}

/// No client counts for more than a doubling or a halving from one window to the next. A guess: a
/// clock hardly ever causes more.
const MOST_CHANGE: f64 = std::f64::consts::LN_2;

/// What a client has reported in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Tally {
    calls: f64,
    span_ns: f64,
    in_region_ns: f64,
    /// Values that the client reported itself: their sum and their number.
    told: (f64, f64),
}

impl Tally {
    /// Adds calls of one site.
    pub(super) fn calls(&mut self, calls: u64, span_ns: u64, in_region_ns: u64) {
        self.calls += calls as f64;
        self.span_ns += span_ns as f64;
        self.in_region_ns += in_region_ns as f64;
    }

    /// Adds a value that the client reported.
    pub(super) fn told(&mut self, value: f64) {
        self.told = (self.told.0 + value, self.told.1 + 1.0);
    }

    /// The client's performance, if it is a number above zero. With several sites, rates are means
    /// over sites.
    fn value(&self, metric: Metric) -> Option<f64> {
        let value = if self.told.1 > 0.0 {
            self.told.0 / self.told.1
        } else {
            match metric {
                Metric::RegionTime => self.calls / self.in_region_ns,
                Metric::CallRate => self.calls / self.span_ns,
            }
        };
        (value.is_finite() && value > 0.0).then_some(value)
    }
}

/// A client's performance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Performance {
    /// The reports of the present window.
    pub(super) tally: Tally,
    /// The performance in the last window with a report.
    last: Option<f64>,
    /// The change in the last window since the one before (natural logarithm).
    changed: Option<f64>,
    /// Whether the present window counts.
    has_begun: bool,
}

impl Performance {
    /// The performance of a new client. `skips_first`: the window in which the client comes does
    /// not count, because the client was not there for all of it, and programs start differently
    /// from how they go on. The paper's loop counts that window.
    pub(super) fn new(skips_first: bool) -> Self {
        Self { has_begun: !skips_first, ..Self::default() }
    }

    /// The change in the last window since the one before (natural logarithm), if that is known.
    pub(super) const fn changed(&self) -> Option<f64> {
        self.changed
    }
}

/// How well all clients do together, at the end of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trend {
    /// Nothing is known: no client reported anything.
    Unknown,
    /// Nothing is known yet, but the next window can be compared with this one.
    First,
    /// The change since the window before, in parts.
    Changed(f64),
}

impl Trend {
    /// The change, if it is known.
    #[must_use]
    pub const fn change(self) -> Option<f64> {
        match self {
            Self::Changed(change) => Some(change),
            Self::Unknown | Self::First => None,
        }
    }
}

/// Ends a window. Linear in clients.
pub(super) fn trend<'a>(
    clients: impl Iterator<Item = (UserId, &'a mut Performance)>,
    metric: Metric,
    mixing: Mixing,
) -> Trend {
    let (mut before, mut after) = (0.0, 0.0);
    // For each user: the sum of the changes of clients that reported any, and the number of these
    // clients.
    let mut users: BTreeMap<UserId, (f64, f64)> = BTreeMap::new();
    let mut none = Trend::Unknown;
    for (user, client) in clients {
        client.changed = None;
        let now = std::mem::take(&mut client.tally).value(metric);
        if !std::mem::replace(&mut client.has_begun, true) {
            continue;
        }
        if let Some(last) = client.last {
            before += last;
            after += now.unwrap_or(last);
            if let Some(now) = now {
                let change = (now / last).ln().clamp(-MOST_CHANGE, MOST_CHANGE);
                let (changes, told) = users.entry(user).or_default();
                (*changes, *told) = (*changes + change, *told + 1.0);
                client.changed = Some(change);
            }
        }
        if now.is_some() {
            (client.last, none) = (now, Trend::First);
        }
    }
    let trend = match mixing {
        Mixing::Sum => after / before - 1.0,
        Mixing::Fair => {
            let means = users.values().map(|(changes, told)| changes / told);
            means.sum::<f64>() / users.len() as f64
        }
    };
    if !users.is_empty() && trend.is_finite() { Trend::Changed(trend) } else { none }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The trend over two windows, in which clients make this many calls a second.
    fn trend_of(rates: &[(u64, u64)], mixing: Mixing) -> Trend {
        let mut clients = vec![Performance::default(); rates.len()];
        let mut window = |of: fn(&(u64, u64)) -> u64| {
            for (client, rate) in clients.iter_mut().zip(rates) {
                client.tally.calls(of(rate), 1_000_000_000, 1000);
            }
            let clients = clients.iter_mut().map(|client| (UserId::default(), client));
            trend(clients, Metric::CallRate, mixing)
        };
        // In the first window clients may have started in its middle.
        assert_eq!(window(|rate| rate.1), Trend::Unknown);
        assert!(!matches!(window(|rate| rate.0), Trend::Changed(_)));
        window(|rate| rate.1)
    }

    #[track_caller]
    fn check(found: Trend, expected: f64) {
        let Trend::Changed(change) = found else { panic!("{found:?}") };
        assert!((change - expected).abs() < 1e-9, "{change}");
    }

    #[test]
    fn a_sum_counts_calls_and_a_fair_mean_counts_clients() {
        // One client gains a tenth. The other calls a thousandth as often and loses half.
        let rates = [(100_000, 110_000), (100, 50)];
        check(trend_of(&rates, Mixing::Sum), 110_050.0 / 100_100.0 - 1.0);
        check(trend_of(&rates, Mixing::Fair), f64::midpoint(1.1_f64.ln(), 0.5_f64.ln()));
    }

    #[test]
    fn what_one_client_claims_is_bounded() {
        let rates = [(1, u64::MAX), (100, 100), (100, 100), (100, 100)];
        check(trend_of(&rates, Mixing::Fair), MOST_CHANGE / 4.0);
    }

    #[test]
    fn a_user_counts_once_however_many_clients_there_are() {
        let mut clients = vec![Performance::default(); 100];
        let mut window = |of: fn(usize) -> u64| {
            for (index, client) in clients.iter_mut().enumerate() {
                client.tally.calls(of(index), 1_000_000_000, 1000);
            }
            let user = |index: usize| UserId(if index == 0 { 1 } else { 2 });
            let clients = clients.iter_mut().enumerate();
            let clients = clients.map(|(index, client)| (user(index), client));
            trend(clients, Metric::CallRate, Mixing::Fair)
        };
        window(|_| 1000);
        window(|_| 1000);
        let found = window(|index| if index == 0 { 500 } else { 2000 });
        check(found, 0.0);
    }

    #[test]
    fn clients_that_tell_nothing_do_not_count_as_changed() {
        check(trend_of(&[(100, 0), (100, 200)], Mixing::Fair), MOST_CHANGE);
        check(trend_of(&[(100, 0), (100, 200)], Mixing::Sum), 0.5);
        assert_eq!(trend_of(&[(100, 0)], Mixing::Sum), Trend::Unknown);
        assert_eq!(trend_of(&[(0, 100)], Mixing::Fair), Trend::First);
        assert_eq!(trend_of(&[], Mixing::Fair), Trend::Unknown);
    }

    #[test]
    fn what_a_client_tells_goes_before_what_is_counted() {
        let mut tally = Tally::default();
        tally.calls(10, 1000, 500);
        assert_eq!(tally.value(Metric::CallRate), Some(0.01));
        assert_eq!(tally.value(Metric::RegionTime), Some(0.02));
        tally.told(3.0);
        tally.told(5.0);
        assert_eq!(tally.value(Metric::CallRate), Some(4.0));
        tally.told(f64::INFINITY);
        assert_eq!(tally.value(Metric::CallRate), None);
    }
}
