//! Tests of the screen with made-up states, in terminals of every size.

use dimmer_processor::units::{CpuId, KiloHertz};
use dimmer_report::Screen;
use dimmer_report::number::SPACE;
use dimmer_watch::state::{
    Client, ClockClient, ClockRequests, Cores, Mechanism, Policy, Site, Specialise, State,
};
use expect_test::{Expect, expect};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::rows::{self, Sort};
use super::view::{News, View, Wish};
use super::{plain, screen, words};

/// A terminal without colors.
fn columns(width: u16) -> Screen {
    Screen { width, is_coloured: false, is_for_people: true }
}

fn site(name: &str, calls: u64, moved: u64, (action, reason): (&str, &str)) -> Site {
    Site {
        name: name.into(),
        line: 16,
        calls,
        moved,
        calls_per_s: 1000.0,
        share: 0.4,
        stayed_ns: Some(20_100.0),
        moved_ns: (moved > 0).then_some(20_900.0),
        clock: Some(0.93),
        action: action.to_owned().into(),
        reason: reason.to_owned().into(),
    }
}

fn client(pid: i32, name: &str, metric: Option<f64>, sites: Vec<Site>) -> Client {
    // Not the number of the process.
    let client = 1000 + u64::from(pid.unsigned_abs());
    Client {
        client,
        pid,
        uid: 1000,
        name: name.to_owned(),
        unit: String::new(),
        lies: 0,
        metric,
        wide_threads: None,
        sites,
    }
}

/// The state after this number of looks, a second apart.
fn state(looks: u64) -> State {
    let encrypt = site("encrypt", looks * 20_000, looks * 19_000, ("move", "dense at L1"));
    let mut parse = site("parse", looks * 500, 0, ("stay", "sparse"));
    (parse.share, parse.clock) = (0.01, None);
    State {
        schema: "dimmer/state/1".to_owned(),
        version: "0.1.0".to_owned(),
        pid: 4242,
        up_s: looks as f64,
        policy: Policy {
            decides: "thresholds".to_owned(),
            unit: "site".to_owned(),
            metric: "call-rate".to_owned(),
            mixing: "fair".to_owned(),
            model: Some("kept/model.toml".to_owned()),
            no_prices: None,
            hand_over_ns: Some(512.0),
            call_ns: Some(vec![900.0, 2400.0]),
            thresholds: Some(vec![0.02, 0.02, 0.02, 0.02]),
            mechanisms: Vec::new(),
        },
        cores: Cores { may: vec![3, 2], dedicated: 1, no_core: None },
        clocks: Vec::new(),
        no_clocks: None,
        clients: vec![
            client(501, "server", Some(1_234_567.0), vec![parse, encrypt]),
            client(77, "idle", None, vec![]),
        ],
        hidden: 0,
        programs: Vec::new(),
        specialise: None,
    }
}

fn clocks() -> Vec<(CpuId, KiloHertz)> {
    (0..4).map(|cpu| (CpuId::new(cpu), KiloHertz::from_mhz(3000 - 200 * u64::from(cpu)))).collect()
}

fn news(state: State) -> News {
    News::State(Box::new(state), clocks())
}

fn view() -> View {
    let mut view = View::new("/run/dimmer/socket".to_owned(), 1.0, state(1));
    (2..=12).for_each(|looks| view.take(news(state(looks))));
    view
}

fn drawn(view: &mut View, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen::draw(view, frame)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(view: &mut View, width: u16, height: u16) -> String {
    let buffer = drawn(view, width, height);
    let lines = buffer.content().chunks(usize::from(width));
    let line = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned() + "\n"
    };
    lines.map(line).collect()
}

fn press(view: &mut View, code: KeyCode) {
    assert_eq!(view.press(KeyEvent::new(code, KeyModifiers::NONE)), Wish::On);
}

#[track_caller]
fn check(view: &mut View, (width, height): (u16, u16), expected: Expect) {
    // Snapshots lose the indentation that all lines have.
    let text: String = text(view, width, height).lines().map(|line| format!("│{line}\n")).collect();
    expected.assert_eq(&text);
}

#[test]
fn a_wide_screen_has_everything() {
    check(
        &mut view(),
        (120, 30),
        expect![[r#"
            │ dimmer top  dimmerd 0.1.0 at /run/dimmer/socket, process 4242, up 12 s
            │ policy     thresholds: moves each region above them, and lets them follow what does better
            │ better is  what programs say, or else more calls of regions a second; each program counts the same
            │ cores      cpu 3 is dedicated; cpu 2 may be, too; clocks 2.40 GHz dedicated, 2.60 to 3.00 GHz others
            │ prices     a hand-over takes 512 ns; a call costs what comes after it at most 900 ns at L1, 2 400 ns at L2
            │ thresholds L1 2.0 %, L2 2.0 % of a region's time at that level
            │ the last 1 min 2 s ────────────────────────────────────────────────────────────────────────────────────────────────────
            │
            │ dedicated cpus, of 2                                                         ████████████ 1
            │
            │                                                                               ▆▆▆▆▆▆▆▆▆▆▆
            │ calls moved                                                                  ▇███████████ 92.7 %  (47.5 % to 92.7 %)
            │
            │                                                                              ████████████
            │ metric/s of server 501                                                       ████████████ 1.23 M
            │
            │                                                                              ████████████
            │ threshold of L1                                                              ████████████ 2.0 %
            │ 2 programs, 2 regions, by CPU ───────────────────────────────────────────────────────────────────────────────── 1 to 3
            │                                               of a one stayed one moved   clock                        calls    moved,
            │ program              region        calls/s     CPU      takes     takes   after decision               moved over time
            │ server 501           encrypt:16     20.0 k  40.0 %    20.1 µs   20.9 µs  93.0 % moved, dense at L1    95.0 % █████████
            │ server 501           parse:16          500   1.0 %    20.1 µs                   stays, sparse          0.0 % ▁▁▁▁▁▁▁▁▁
            │ idle 77              none yet
            │
            │
            │ selected ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
            │ encrypt, line 16, of server, process 501, user 1000: 240 000 calls since it began, 228 000 of them moved
            │ moved, dense at L1: it is above the threshold of that level
            │ q quit  ↑↓ select  s sort  p pause  ? help
        "#]],
    );
}

#[test]
fn a_small_screen_has_what_matters_most() {
    check(
        &mut view(),
        (60, 14),
        expect![[r#"
            │ dimmer top  dimmerd 0.1.0 at /run/dimmer/socket, process 4…
            │ policy     thresholds: moves each region above them, and l…
            │ better is  what programs say, or else more calls of region…
            │ cores      cpu 3 is dedicated; cpu 2 may be, too; clocks 2…
            │ prices     a hand-over takes 512 ns; a call costs what com…
            │ thresholds L1 2.0 %, L2 2.0 % of a region's time at that l…
            │ 2 programs, 2 regions, by CPU ───────────────────── 1 to 3
            │                                                      calls
            │ program          region       decision               moved
            │ server 501       encrypt:16   moved, dense at L1    95.0 %
            │ server 501       parse:16     stays, sparse          0.0 %
            │ idle 77          none yet
            │
            │ q quit  ↑↓ select  s sort  p pause  ? help
        "#]],
    );
}

#[test]
fn help_is_over_everything() {
    let mut view = view();
    press(&mut view, KeyCode::Char('?'));
    check(
        &mut view,
        (100, 26),
        expect![[r#"
            │ dimmer top  dimmerd 0.1.0 at /run/dimmer/socket, process 4242, up 12 s
            │ policy     thresholds: moves each region above them, and lets them follow what does better
            │ better is  what programs say, or else more calls of regions a second; each program counts the same
            │ cores  ┌ help ────────────────────────────────────────────────────────────────────────────┐Hz othe…
            │ prices │ q            ends this                                                           │ 2 400 …
            │ thresho│ ↑ ↓          select a region; page up, page down, home and end go farther        │
            │ the las│ s            sorts by CPU, calls/s, moved, program, decision                     │────────
            │ dedicat│ p            stops the screen, and lets it go on                                 │
            │ calls m│ ?            this help                                                           │.7 %)
            │ metric/│                                                                                  │
            │ thresho│ program      its name and process                                                │
            │ 2 progr│ region       the name it was marked with, and its line                           │ 1 to 3
            │        │ calls/s      since the last look                                                 │  calls
            │ program│ of a CPU     the part of one CPU's time in it, in the server's last look         │  moved
            │ server │ takes        how long a call takes that stayed where it was, and one that was    │ 95.0 %
            │ server │              moved to a dedicated core and back                                  │  0.0 %
            │ idle 77│ clock after  the core's clock right after a call, as a part of the highest       │
            │        │ metric/s     what the program gets done by its own account                       │
            │        │ decision     moved to a dedicated core or not, and why; the selected one at      │
            │        │              length below                                                        │
            │        │ moved        the part of its calls that was moved, since the last look and over  │
            │        │              time, the newest on the right                                       │
            │ selecte└──────────────────────────────────────────────────────────────────────────────────┘────────
            │ encrypt, line 16, of server, process 501, user 1000: 240 000 calls since it began, 228 000 of them…
            │ moved, dense at L1: it is above the threshold of that level
            │ q quit  ↑↓ select  s sort  p pause  ? help
        "#]],
    );
    press(&mut view, KeyCode::Esc);
    assert!(!text(&mut view, 100, 26).contains(" help ─"));
}

#[test]
fn the_table_has_the_same() {
    let state = state(12);
    let rows = rows::rows(&state, Some(&self::state(11)));
    let text = plain::render(&state, None, "/run/dimmer/socket", &[], &rows, columns(100));
    expect![[r#"
        dimmerd 0.1.0 at /run/dimmer/socket, process 4242, up 12 s
        policy     thresholds: moves each region above them, and lets them follow what does better
        better is  what programs say, or else more calls of regions a second; each program counts the same
        cores      cpu 3 is dedicated; cpu 2 may be, too
        prices     a hand-over takes 512 ns; a call costs what comes after it at most 900 ns at L1, 2 400 ns
                   at L2
        thresholds L1 2.0 %, L2 2.0 % of a region's time at that level

        program    region     calls/s  CPU     one        one       clock   calls   metric/s  decision
                                               stayed     moved     after   moved
                                               takes      takes
        server     parse:16       500   1.0 %    20.1 µs                     0.0 %    1.23 M  stays, sparse
        501
        server     encrypt:1   20.0 k  40.0 %    20.1 µs   20.9 µs  93.0 %  95.0 %    1.23 M  moved, dense
        501        6                                                                          at L1
        idle 77    none yet
    "#]].assert_eq(&text);
}

#[test]
fn mechanisms_that_are_compared_are_shown_with_their_gains() {
    let of = |mechanism: &'static str, is_in_force, gain_ratio: Option<f64>| Mechanism {
        mechanism: mechanism.into(),
        is_in_force,
        is_chosen: mechanism == "none",
        gain_ratio,
        open_ratio: gain_ratio.map(|_| 0.004),
    };
    let told = |is_trial: bool| {
        let mechanisms = vec![of("none", !is_trial, None), of("delegate", is_trial, Some(-0.0321))];
        words::mechanisms(&Policy { mechanisms, ..Policy::default() })
    };
    let gains = "; delegate gains -3.2 %, within 0.4";
    assert_eq!(told(false), Some(format!("none is in force: did the most work so far{gains}")));
    assert_eq!(told(true), Some(format!("delegate is in force: for a trial{gains}")));
    assert_eq!(words::mechanisms(&Policy::default()), None);
}

#[test]
fn nothing_to_show_is_said() {
    let nobody = State { clients: Vec::new(), ..state(1) };
    let mut view = View::new("socket".to_owned(), 1.0, nobody.clone());
    assert!(text(&mut view, 80, 24).contains("No program with marked regions is there."));
    let told = plain::render(&nobody, None, "socket", &[], &[], columns(80));
    assert!(told.ends_with("No program with marked regions is there.\n"));
}

#[test]
fn a_server_that_ends_and_comes_again_is_followed() {
    let mut view = view();
    view.take(News::Gone("no policy server at /run/dimmer/socket; `dimmerd` is one".to_owned()));
    let shown = text(&mut view, 120, 30);
    assert!(
        shown.contains("What is shown is old: no policy server at /run/dimmer/socket"),
        "{shown}"
    );
    assert!(shown.contains("encrypt"), "what was last known stays: {shown}");
    let again = State { pid: 4343, ..state(2) };
    view.take(news(again));
    let shown = text(&mut view, 120, 30);
    assert!(shown.contains("has come again") && shown.contains("process 4343"), "{shown}");
    assert!(!shown.contains("is old"));
    view.take(news(State { pid: 4343, ..state(61) }));
    assert!(!text(&mut view, 120, 30).contains("has come again"));
}

#[test]
fn pausing_keeps_what_is_shown() {
    let mut view = view();
    press(&mut view, KeyCode::Char('p'));
    let before = text(&mut view, 120, 30);
    assert!(before.contains("PAUSED"));
    view.take(news(State { clients: Vec::new(), ..state(13) }));
    assert_eq!(text(&mut view, 120, 30), before);
    press(&mut view, KeyCode::Char('p'));
    view.take(news(state(14)));
    assert_ne!(text(&mut view, 120, 30), before);
}

#[test]
fn keys_end_it() {
    let mut view = view();
    let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.press(control), Wish::Interrupt);
    assert_eq!(view.press(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)), Wish::End);
}

/// A state with this number of regions, in four programs. The last region has the most calls, the
/// first one the greatest share.
fn many(sites: usize, looks: u64) -> State {
    let place = |index: usize| index as u64 + 1;
    let site = |index: usize| {
        let calls = looks * place(index) * 10;
        let decision =
            if index.is_multiple_of(3) { ("move", "worth it") } else { ("stay", "untried") };
        let moved = if index.is_multiple_of(3) { calls / place(index % 7) } else { 0 };
        Site {
            share: 1.0 / place(index) as f64,
            ..site(&format!("s{index}"), calls, moved, decision)
        }
    };
    let sites: Vec<Site> = (0..sites).map(site).collect();
    let clients = sites.chunks(sites.len().div_ceil(4)).zip(["alpha", "charlie", "bravo", "delta"]);
    let clients =
        clients.zip(1..).map(|((sites, name), pid)| client(pid, name, None, sites.to_vec()));
    State { clients: clients.collect(), ..state(looks) }
}

#[test]
fn rows_are_sorted_by_each_column() {
    let (before, now) = (many(40, 1), many(40, 2));
    let names = |sort: Sort| {
        let mut rows = rows::rows(&now, Some(&before));
        sort.apply(&mut rows);
        rows.into_iter().map(|row| (row.program, row.region.unwrap())).collect::<Vec<_>>()
    };
    let mut sort = Sort::default();
    for _ in 0..5 {
        let rows = names(sort);
        assert_eq!(rows.len(), 40);
        let is_sorted = |by: fn(&(String, rows::Region)) -> f64| {
            rows.is_sorted_by(|left, right| by(left) >= by(right))
        };
        assert!(match sort {
            Sort::Share => is_sorted(|(_, region)| region.share),
            Sort::Calls => is_sorted(|(_, region)| region.calls_per_s),
            Sort::Moved => is_sorted(|(_, region)| region.moved_ratio.unwrap()),
            Sort::Program => rows.is_sorted_by_key(|(program, _)| program.clone()),
            Sort::Decision => is_sorted(|(_, region)| f64::from(u8::from(region.is_moved))),
        });
        sort = sort.next();
    }
    assert_eq!(sort, Sort::default());
}

#[test]
fn rates_are_of_the_time_between_two_looks() {
    let rates = |before: Option<&State>, state: &State| {
        let rows = rows::rows(state, before);
        let region = rows[1].region.clone().unwrap();
        (region.calls_per_s, region.moved_ratio)
    };
    assert_eq!(rates(Some(&state(3)), &state(5)), (20_000.0, Some(0.95)));
    // Without an earlier state: the server's latest rates, and moved shares since the program's
    // start.
    assert_eq!(rates(None, &state(5)), (1000.0, Some(0.95)));
    // Another server, or other programs in place of the earlier ones.
    let other = State { pid: 1, ..state(3) };
    assert_eq!(rates(Some(&other), &state(5)), (1000.0, Some(0.95)));
    assert_eq!(rates(Some(&State { up_s: 0.5, ..state(9) }), &state(5)), (1000.0, Some(0.95)));
    // Nothing was called.
    let still = State { up_s: 6.0, ..state(5) };
    assert_eq!(rates(Some(&state(5)), &still), (0.0, None));
}

#[test]
fn thousands_of_regions_are_scrolled_through() {
    let mut view = View::new("socket".to_owned(), 1.0, many(20_000, 1));
    view.take(news(many(20_000, 2)));
    let shown = |view: &mut View| text(view, 100, 30);
    let first = shown(&mut view);
    assert!(
        first.contains(" s0:16 ") && first.contains(" 1 to ") && first.contains("20 000 regions")
    );
    press(&mut view, KeyCode::End);
    let last = shown(&mut view);
    assert!(last.contains(" s19999:16 ") && last.contains(" to 20 000\n"), "{last}");
    press(&mut view, KeyCode::PageUp);
    press(&mut view, KeyCode::Up);
    assert!(!shown(&mut view).contains(" s19999:16 "));
    // The selected row stays selected, and on the screen, wherever sorting moves it.
    press(&mut view, KeyCode::Home);
    press(&mut view, KeyCode::Char('s'));
    let sorted = shown(&mut view);
    assert!(sorted.contains(" s0, line 16, of ") && sorted.contains(" to 20 000\n"), "{sorted}");
    // If it is gone, the first row is selected.
    view.take(news(many(4, 3)));
    assert!(shown(&mut view).contains(" 1 to 4\n"));
}

#[test]
fn no_terminal_is_too_small() {
    let mut long = state(3);
    long.clients[0].name = "名前".repeat(20);
    long.clients[0].sites[0].name = "a\u{1b}[2Jb\u{202e}e\u{301}🦀".repeat(9).into();
    long.clients[0].lies = 3;
    (long.hidden, long.cores.dedicated) = (2, 9);
    long.clients[0].sites[0].share = f64::NAN;
    let mut views = [view(), View::new("x".repeat(300), 0.1, long), {
        View::new(String::new(), 1e9, State::default())
    }];
    views[0].take(News::Gone("gone\nfor ever".to_owned()));
    for view in &mut views {
        for help in [false, true] {
            view.shows_help = help;
            for width in (1..=200).step_by(7).chain([2, 3, 31, 80, 200]) {
                for height in 1..=60 {
                    drawn(view, width, height);
                }
            }
        }
    }
}

#[test]
fn names_are_no_commands_to_the_terminal() {
    let mut state = state(3);
    state.clients[0].name = "\u{1b}]0;x\u{7}名前".to_owned();
    state.clients[0].sites[1].name = "wide 漢字\u{202e}\u{9b}31m".into();
    state.cores.no_core = Some("\u{1b}[31mno".to_owned());
    let rows = rows::rows(&state, None);
    let told = plain::render(&state, None, "\u{1b}socket", &[], &rows, columns(100));
    let mut view = View::new("\u{1b}socket".to_owned(), 1.0, state);
    let shown = text(&mut view, 120, 30);
    for text in [&told, &shown] {
        let obeyed = |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}';
        assert!(!text.contains(obeyed), "{text:?}");
    }
    assert!(told.contains('名') && told.contains("漢字"), "{told}");
}

#[test]
fn a_table_has_a_limit_of_regions_of_one_program() {
    let mut state = state(3);
    let one = state.clients[0].sites[0].clone();
    state.clients[0].sites = vec![one; plain::MOST_REGIONS + 2];
    let told = plain::render(&state, None, "socket", &[], &rows::rows(&state, None), columns(100));
    assert_eq!(told.matches("parse:16").count(), plain::MOST_REGIONS);
    assert!(told.ends_with("server 501 has 2 regions more.\n"), "{told}");
    assert!(told.contains("idle 77"), "{told}");
}

#[test]
fn two_connections_of_a_process_are_told_apart() {
    let at = |up_s: f64, calls: [u64; 2]| {
        let connection = |(client, calls): (u64, u64)| {
            let sites = vec![site("work", calls, 0, ("stay", "untried"))];
            Client { client, ..client_of(sites) }
        };
        let clients = [3, 4].into_iter().zip(calls).map(connection).collect();
        State { up_s, clients, ..state(1) }
    };
    let rows = rows::rows(&at(11.0, [1_000, 9_000_000]), Some(&at(10.0, [1_000, 9_000_000])));
    let rates = rows.iter().map(|row| row.region.as_ref().unwrap().calls_per_s);
    assert_eq!(rates.collect::<Vec<_>>(), [0.0, 0.0]);
    assert!(rows.iter().all(|row| row.pid == 5) && rows[0].key != rows[1].key);
}

fn client_of(sites: Vec<Site>) -> Client {
    client(5, "twice", None, sites)
}

#[test]
fn programs_that_say_what_cannot_be_come_last() {
    let mut liar = client(8, "liar", None, vec![site("s", 9_000_000, 0, ("stay", "scalar")); 1024]);
    liar.lies = 3;
    liar.sites.iter_mut().for_each(|site| site.share = 64.0);
    let honest = state(2).clients;
    let clients = std::iter::once(liar).chain(honest.clone()).collect();
    let mut rows = rows::rows(&State { clients, ..state(2) }, None);
    let regions: usize = honest.iter().map(|client| client.sites.len().max(1)).sum();
    for sort in [Sort::Share, Sort::Calls, Sort::Moved, Sort::Program, Sort::Decision] {
        sort.apply(&mut rows);
        assert!(rows[..regions].iter().all(|row| row.lies == 0), "{}", sort.name());
    }
}

#[test]
fn core_specialisation_has_a_line_if_its_module_is_loaded() {
    let at = |looks: u64| {
        let specialise = Specialise {
            narrow: vec![2, 3],
            wide: vec![0, 1],
            is_scheduled: true,
            faults: 1000 + 30 * looks,
            moves: 1000,
            move_ns: 21_400_000,
            allowed: 2,
            limits: 3,
            ..Specialise::default()
        };
        State { specialise: Some(specialise), ..state(looks) }
    };
    let line = "cpu 2-3 is narrow, threads move by the scheduler; wide code met one 1 330 times \
                (30 a second now), moved 1 000 times, after 21.4 µs on average, stayed 5 times";
    let told = words::specialise(&at(11), Some(&at(10))).unwrap();
    assert_eq!(told.replace(SPACE, " "), line);
    let mut view = View::new("socket".to_owned(), 1.0, at(10));
    view.take(news(at(11)));
    assert!(text(&mut view, 200, 30).contains(&format!(" specialise {line}\n")));
    let plain = plain::render(&at(11), Some(&at(10)), "socket", &[], &[], columns(200));
    assert!(plain.replace(SPACE, " ").contains(&format!("specialise {line}\n")), "{plain}");

    // The module was loaded again in between, and nothing has happened yet.
    let new = State { specialise: Some(Specialise::default()), ..state(12) };
    let told = words::specialise(&new, Some(&at(11))).unwrap();
    assert_eq!(told, "no cpu is narrow; wide code met one 0 times, moved 0 times, stayed 0 times");
    assert_eq!(words::specialise(&state(1), None), None);
}

#[test]
fn requests_of_clocks_are_shown_by_program() {
    let own = |pid| ClockClient {
        pid,
        uid: 1000,
        name: "pa\u{1b}ce".to_owned(),
        requests: ClockRequests { requested: 9, granted: 4, waiting: 3, held_back: 2, refused: 0 },
    };
    let one = State { clocks: vec![own(7)], ..state(1) };
    let told = words::requests(&one).unwrap();
    let of = "7 of user 1000: 4 of 9 granted, 3 wait, 2 held back, 0 refused";
    assert!(told.ends_with(of) && !told.contains('\u{1b}'), "{told}");
    let mut view = View::new("socket".to_owned(), 1.0, one.clone());
    assert!(text(&mut view, 200, 30).contains(of));
    let plain = plain::render(&one, None, "socket", &[], &[], columns(200));
    assert!(plain.replace(SPACE, " ").contains(of), "{plain}");
    let many = State { clocks: (0..20).map(own).collect(), ..state(1) };
    assert!(words::requests(&many).unwrap().ends_with("; 12 other programs"));
    let none = State { no_clocks: Some("no\u{1b}ne".to_owned()), ..state(1) };
    let told = words::requests(&none).unwrap();
    assert!(told.starts_with("of clocks are not moderated: no"), "{told}");
    assert_eq!(words::requests(&state(1)), None);
}
