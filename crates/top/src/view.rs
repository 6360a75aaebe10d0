//! What the screen shows: the server's latest state, its history, and the choices made by keys.
//! Contains no terminal code.

use std::ops::Range;

use dimmer_processor::units::{CpuId, KiloHertz};
use dimmer_watch::state::State;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::history::History;
use super::rows::{self, Key, Row, Sort};
use super::words;

/// How long the message about a restarted server is shown (s).
const NEWS_S: f64 = 60.0;

/// The result of asking the server.
#[derive(Debug)]
pub enum News {
    /// The state, and the clocks of those CPUs for which the machine reports them.
    State(Box<State>, Vec<(CpuId, KiloHertz)>),
    /// The reason why there is no state.
    Gone(String),
}

/// What a key requests beyond the content of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// To continue.
    On,
    /// To end.
    End,
    /// To end as after an interrupt, which terminals in raw mode do not send.
    Interrupt,
}

/// What the screen shows.
#[derive(Debug)]
pub struct View {
    /// The server's socket.
    pub(super) socket: String,
    /// Time between two states (s).
    pub(super) interval_s: f64,
    pub(super) state: State,
    pub(super) clocks: Vec<(CpuId, KiloHertz)>,
    /// The rows of the state, in the order of the screen.
    pub(super) rows: Vec<Row>,
    pub(super) history: History,
    /// What core specialisation in the kernel does, in words.
    pub(super) specialise: Option<String>,
    /// The reason why the state shown is outdated, if it is.
    pub(super) gone: Option<String>,
    /// Whether the server was restarted since this command started.
    has_come_again: bool,
    pub(super) sort: Sort,
    selected: Option<Key>,
    /// The first row on the screen.
    offset: usize,
    /// Number of rows of the last screen.
    page: usize,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
}

impl View {
    /// The view of the first state. `interval_s` is the time between two states (s).
    pub fn new(socket: String, interval_s: f64, state: State) -> Self {
        let mut view = Self {
            socket,
            interval_s,
            state: State::default(),
            clocks: Vec::new(),
            rows: Vec::new(),
            history: History::default(),
            specialise: None,
            gone: None,
            has_come_again: false,
            sort: Sort::default(),
            selected: None,
            offset: 0,
            page: 1,
            is_paused: false,
            shows_help: false,
        };
        view.show(state, None);
        view
    }

    /// Takes a new state, unless the screen is paused.
    pub fn take(&mut self, news: News) {
        if self.is_paused {
            return;
        }
        match news {
            News::State(state, clocks) => {
                self.clocks = clocks;
                self.gone = None;
                let before = std::mem::take(&mut self.state);
                if !rows::is_same_server(&before, &state) {
                    self.has_come_again = true;
                    // The new server numbers its clients from the start again.
                    self.history.regions.clear();
                }
                self.show(*state, Some(&before));
            }
            News::Gone(why) => {
                self.gone = Some(why);
                self.history.miss();
            }
        }
    }

    fn show(&mut self, state: State, before: Option<&State>) {
        self.rows = rows::rows(&state, before);
        self.history.add(&state, &self.rows);
        self.sort.apply(&mut self.rows);
        self.specialise = words::specialise(&state, before);
        self.state = state;
    }

    /// Whether to report that the server was restarted.
    pub(super) fn tells_again(&self) -> bool {
        self.has_come_again && self.state.up_s < NEWS_S
    }

    /// The index of the selected row; 0 if none is selected.
    pub(super) fn selected(&self) -> usize {
        let place = self.rows.iter().position(|row| Some(row.key) == self.selected);
        place.unwrap_or(0)
    }

    /// The range of rows for a screen with this number of rows; it contains the selected one.
    pub(super) fn page(&mut self, rows: usize) -> Range<usize> {
        self.page = rows.max(1);
        let selected = self.selected();
        let most = self.rows.len().saturating_sub(self.page);
        let least = (selected + 1).saturating_sub(self.page);
        self.offset = self.offset.clamp(least, selected).min(most);
        self.offset..(self.offset + rows).min(self.rows.len())
    }

    /// Does what a key requests.
    pub fn press(&mut self, key: KeyEvent) -> Wish {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Wish::Interrupt;
        }
        let page = self.page;
        match key.code {
            KeyCode::Char('q') => return Wish::End,
            KeyCode::Char('?' | 'h') => self.shows_help = !self.shows_help,
            KeyCode::Esc => self.shows_help = false,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.sort.apply(&mut self.rows);
            }
            KeyCode::Up | KeyCode::Char('k') => self.select(|at| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|at| at + 1),
            KeyCode::PageUp => self.select(|at| at.saturating_sub(page)),
            KeyCode::PageDown => self.select(|at| at + page),
            KeyCode::Home => self.select(|_| 0),
            KeyCode::End => self.select(|_| usize::MAX),
            _ => {}
        }
        Wish::On
    }

    fn select(&mut self, of: impl FnOnce(usize) -> usize) {
        let place = of(self.selected()).min(self.rows.len().saturating_sub(1));
        self.selected = self.rows.get(place).map(|row| row.key);
    }
}
