//! A state as metrics need it: beside what programs did since the start, what their clients are
//! doing now.

use std::collections::BTreeMap;

use dimmer_watch::state::{Client, Program, State};

/// A state, and what is connected of each program in it.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The state.
    pub state: State,
    /// Whether metrics have the clients themselves.
    pub is_per_client: bool,
    /// What is connected, in the order of `state.programs`.
    pub(super) connected: Vec<Connected>,
}

/// What is connected of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Connected {
    pub(super) clients: u64,
    /// Regions whose calls stay, and those whose calls are moved.
    pub(super) staying: u64,
    pub(super) moved: u64,
    /// The lowest clock right after a region.
    pub(super) clock: Option<f64>,
}

impl Measured {
    /// Sums up the clients of a state by program.
    #[must_use]
    pub fn new(state: State, is_per_client: bool) -> Self {
        let mut connected = vec![Connected::default(); state.programs.len()];
        let keys = state.programs.iter().map(|Program { program, unit, .. }| (program, unit));
        let places: BTreeMap<_, usize> = keys.zip(0..).collect();
        for client in &state.clients {
            // The first program is all those without a sum of their own.
            let place = places.get(&(&client.name, &client.unit)).copied().unwrap_or(0);
            if let Some(connected) = connected.get_mut(place) {
                connected.add(client);
            }
        }
        Self { state, is_per_client, connected }
    }
}

impl Connected {
    fn add(&mut self, client: &Client) {
        self.clients += 1;
        for site in &client.sites {
            let is_moved = site.action == "move";
            *(if is_moved { &mut self.moved } else { &mut self.staying }) += 1;
            let clocks = self.clock.into_iter().chain(site.clock);
            self.clock = clocks.min_by(f64::total_cmp);
        }
    }
}

#[cfg(test)]
mod tests {
    use dimmer_watch::state::Site;

    use super::*;

    #[test]
    fn clients_of_a_program_and_unit_are_summed_up() {
        let program = |program: &str, unit: &str| Program {
            program: program.to_owned(),
            unit: unit.to_owned(),
            ..Program::default()
        };
        let site =
            |action: &'static str, clock| Site { action: action.into(), clock, ..Site::default() };
        let client = |name: &str, unit: &str, sites| Client {
            name: name.to_owned(),
            unit: unit.to_owned(),
            sites,
            ..Client::default()
        };
        let state = State {
            programs: vec![program("other", "other"), program("a", "x"), program("a", "")],
            clients: vec![
                client("a", "x", vec![site("move", Some(0.8)), site("stay", Some(0.9))]),
                client("a", "x", vec![site("stay", None)]),
                client("b", "x", vec![]),
                client("a", "", vec![site("stay", None)]),
            ],
            ..State::default()
        };
        let of = |clients, staying, moved, clock| Connected { clients, staying, moved, clock };
        let expected = [of(1, 0, 0, None), of(2, 2, 1, Some(0.8)), of(1, 1, 0, None)];
        assert_eq!(Measured::new(state, false).connected, expected);
        // Who may not see all clients gets no programs, and no sums.
        let client = Client::default();
        let state = State { clients: vec![client], ..State::default() };
        assert_eq!(Measured::new(state, false).connected, []);
    }
}
