//! The four ways out for wide SIMD code, and which is best: leave it, narrow it, move it, or
//! govern the clock around it.
//!
//! What each way brings is given as a range, in parts of the program's time on CPUs. The lower end
//! decides, so that nothing is recommended that may do harm. Narrower code is assumed to need at
//! most twice the time, because half the width does half the work per instruction (OpenSSL's
//! ChaCha20-Poly1305 needs 1.8 times as long with AVX2 as with AVX-512).

/// What wide SIMD code does to a program. All times are in the same unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Time on CPUs.
    pub on_cpu: f64,
    /// Of that, time in the wide SIMD functions; `None` if it was not measured.
    pub within: Option<f64>,
    /// Of that, time that the code around them loses.
    pub lost: f64,
    /// Calls of these functions.
    pub calls: f64,
    /// The least time that handing one of these calls to another core and coming back takes
    /// ([`crate::hand_off`]); `None` if it was not measured.
    pub hand_off: Option<f64>,
    /// Whether the machine allows its clock to be governed.
    pub is_governable: bool,
}

/// A way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// As it is.
    Leave,
    /// The same work with narrower code.
    Narrow,
    /// On another core.
    Move,
    /// With the clock governed around it.
    Govern,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Leave, Self::Narrow, Self::Move, Self::Govern];

    /// The name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Narrow => "narrow",
            Self::Move => "move",
            Self::Govern => "govern",
        }
    }
}

/// What a way out brings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prospect {
    /// The way out.
    pub way: Way,
    /// The part of the time on CPUs that it saves, from and to; a negative value is a loss. `None`
    /// if it cannot be estimated.
    pub gain: Option<(f64, f64)>,
}

/// A gain below this is not worth any action: programs differ by as much from run to run.
pub const WORTHWHILE: f64 = 0.01;

/// What each way out brings, the best first. Empty if there is no time on CPUs.
#[must_use]
pub fn prospects(load: &Load) -> Vec<Prospect> {
    if load.on_cpu.is_nan() || load.on_cpu <= 0.0 {
        return Vec::new();
    }
    let share = |time: f64| time / load.on_cpu;
    let gain = |way| match way {
        Way::Leave => Some((0.0, 0.0)),
        Way::Narrow => load.within.map(|within| (share(load.lost - within), share(load.lost))),
        // The work itself leaves this core as well, but not the machine.
        Way::Move => load.hand_off.map(|each| {
            let net = share(load.lost - load.calls * each);
            (net.min(0.0), net)
        }),
        // All of it, if the clock recovered right after each call; the cost of raising it is not
        // known.
        Way::Govern => load.is_governable.then(|| (0.0, share(load.lost))),
    };
    let mut prospects = Way::ALL.map(|way| Prospect { way, gain: gain(way) });
    let rank = |prospect: &Prospect| match (prospect.way, prospect.gain) {
        (Way::Leave, _) => WORTHWHILE,
        (_, Some((least, _))) => least,
        (_, None) => f64::NEG_INFINITY,
    };
    prospects.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
    prospects.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(load: &Load) -> Way {
        prospects(load)[0].way
    }

    #[test]
    fn short_calls_that_slow_everything_are_narrowed() {
        // A web server: 6 % lost, 1 % within.
        let load =
            Load { on_cpu: 1.0, within: Some(0.01), lost: 0.06, calls: 5000.0, ..Load::default() };
        assert_eq!(best(&load), Way::Narrow);
        let (least, most) = prospects(&load)[0].gain.unwrap();
        assert!((least - 0.05).abs() < 1e-12 && most == 0.06);
    }

    #[test]
    fn work_that_is_mostly_wide_is_left() {
        let load =
            Load { on_cpu: 1.0, within: Some(0.9), lost: 0.006, calls: 1e6, ..Load::default() };
        assert_eq!(best(&load), Way::Leave);
    }

    #[test]
    fn moving_gives_back_what_the_hand_off_leaves_at_most() {
        let load = Load {
            on_cpu: 1.0,
            within: Some(0.2),
            lost: 0.05,
            calls: 5000.0,
            hand_off: Some(1e-6),
            ..Load::default()
        };
        let gain = |load: &Load| {
            prospects(load).into_iter().find(|found| found.way == Way::Move).unwrap().gain.unwrap()
        };
        let (least, most) = gain(&load);
        assert!(least == 0.0 && (most - 0.045).abs() < 1e-12);
        assert!(gain(&Load { hand_off: Some(30e-6), ..load }).1 < 0.0);
        // A gain that is not certain is not recommended first.
        assert_eq!(best(&load), Way::Leave);
    }

    #[test]
    fn less_than_worthwhile_is_left() {
        let load =
            Load { on_cpu: 1.0, within: Some(0.0), lost: 0.009, calls: 1.0, ..Load::default() };
        assert_eq!(best(&load), Way::Leave);
    }

    #[test]
    fn a_clock_that_can_be_governed_gives_back_all_at_most() {
        let load = Load { on_cpu: 2.0, lost: 0.1, ..Load::default() };
        let govern = |load: &Load| {
            prospects(load).into_iter().find(|found| found.way == Way::Govern).unwrap().gain
        };
        assert_eq!(govern(&load), None);
        assert_eq!(govern(&Load { is_governable: true, ..load }), Some((0.0, 0.05)));
    }

    #[test]
    fn nothing_is_said_of_nothing() {
        assert!(prospects(&Load::default()).is_empty());
        assert!(prospects(&Load { on_cpu: f64::NAN, ..Load::default() }).is_empty());
    }
}
