//! Tests of the text.

use super::*;

fn text(state: State, format: Format) -> String {
    Text::new(Arc::new(Measured::new(state, true)), format).collect()
}

#[test]
fn names_cannot_break_the_format() {
    let name = "a\"b\\\n# EOF\nc".into();
    let site = Site { name, calls: 7, ..Site::default() };
    let client = Client { pid: 3, name: "x".to_owned(), sites: vec![site], ..Client::default() };
    let state = State { clients: vec![client], ..State::default() };
    let line = "dimmer_region_calls_total{client=\"0\",pid=\"3\",program=\"x\",unit=\"\",region=\"a\\\"b\\\\\\n# EOF\\nc\",line=\"0\",place=\"0\"} 7";
    for (format, ends) in [(Format::Prometheus, 0), (Format::OpenMetrics, 1)] {
        let text = text(state.clone(), format);
        assert!(text.lines().any(|found| found == line), "{text}");
        assert_eq!(text.matches("\n# EOF\n").count(), ends, "{text}");
        assert_eq!(text.ends_with("\n# EOF\n"), ends == 1);
    }
}

#[test]
fn each_format_names_counters_in_its_own_way() {
    let head = |format| {
        let text = text(State::default(), format);
        text.lines().find(|line| line.contains("counter")).unwrap().to_owned()
    };
    assert_eq!(head(Format::Prometheus), "# TYPE dimmer_program_connections_total counter");
    assert_eq!(head(Format::OpenMetrics), "# TYPE dimmer_program_connections counter");
}

#[test]
fn counters_of_the_kernel_are_there_with_its_module() {
    let specialise = Specialise {
        narrow: vec![2, 3],
        faults: u64::MAX,
        move_ns: 2_500_000_000,
        ..Specialise::default()
    };
    let state = State { specialise: Some(specialise), ..State::default() };
    let with = text(state, Format::Prometheus);
    for line in [
        "dimmer_specialise_narrow_cpus 2",
        "dimmer_specialise_faults_total 18446744073709551615",
        "dimmer_specialise_move_seconds_total 2.5",
    ] {
        assert!(with.lines().any(|found| found == line), "{with}");
    }
    let samples =
        |text: &str| text.lines().filter(|line| line.starts_with("dimmer_specialise_")).count();
    assert_eq!((samples(&with), samples(&text(State::default(), Format::Prometheus))), (14, 0));
}

#[test]
fn mechanisms_have_metrics_if_the_loop_compares_any() {
    let of = |mechanism: &'static str, gain_ratio| Mechanism {
        mechanism: mechanism.into(),
        is_in_force: mechanism == "none",
        gain_ratio,
        ..Mechanism::default()
    };
    let mut state = State::default();
    state.policy.mechanisms = vec![of("none", None), of("delegate", Some(-0.03))];
    let with = text(state, Format::Prometheus);
    let samples = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("dimmer_mechanism_"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(
        samples(&with),
        [
            "dimmer_mechanism_in_force{mechanism=\"none\"} 1",
            "dimmer_mechanism_in_force{mechanism=\"delegate\"} 0",
            "dimmer_mechanism_gain_ratio{mechanism=\"delegate\"} -0.03",
        ]
    );
    assert!(samples(&text(State::default(), Format::Prometheus)).is_empty());
}

#[test]
fn no_two_series_have_the_same_labels() {
    // The same region twice, as when a header is compiled into two files, and two processes
    // that the server does not see.
    let site = Site { name: "parse".into(), line: 7, clock: Some(1.0), ..Site::default() };
    let metric = Some(1.0);
    let client = |client| Client {
        client,
        metric,
        wide_threads: metric,
        sites: vec![site.clone(); 2],
        ..Client::default()
    };
    let state = State { clients: vec![client(5), client(6)], ..State::default() };
    let text = text(state, Format::Prometheus);
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<_> = samples.filter_map(|line| line.rsplit_once(' ')).collect();
    let names: std::collections::BTreeSet<_> = series.iter().map(|(name, _)| *name).collect();
    assert!(series.len() > 20 && names.len() == series.len(), "{text}");
    // Each metric has one header.
    let kinds = text.lines().filter(|line| line.starts_with("# TYPE "));
    assert_eq!(kinds.count(), FAMILIES.len());
}

#[test]
fn programs_have_metrics_and_clients_only_if_that_is_wanted() {
    let program = Program {
        program: "x".to_owned(),
        unit: "u.service".to_owned(),
        calls: 5,
        region_ns: 2_500_000_000,
        ..Program::default()
    };
    let site = Site { action: "move".into(), clock: Some(0.9), ..Site::default() };
    let client = Client {
        name: "x".to_owned(),
        unit: "u.service".to_owned(),
        sites: vec![site],
        ..Client::default()
    };
    let state = State { programs: vec![program], clients: vec![client], ..State::default() };
    let measured = |is_per_client| Arc::new(Measured::new(state.clone(), is_per_client));
    let text = |is| Text::new(measured(is), Format::Prometheus).collect::<String>();
    let without = text(false);
    for line in [
        "dimmer_program_calls_total{program=\"x\",unit=\"u.service\"} 5",
        "dimmer_program_region_seconds_total{program=\"x\",unit=\"u.service\"} 2.5",
        "dimmer_program_clients{program=\"x\",unit=\"u.service\"} 1",
        "dimmer_program_regions{program=\"x\",unit=\"u.service\",action=\"move\"} 1",
        "dimmer_program_clock_ratio{program=\"x\",unit=\"u.service\"} 0.9",
    ] {
        assert!(without.lines().any(|found| found == line), "{line}: {without}");
    }
    assert!(!without.contains("pid="), "{without}");
    assert!(text(true).contains("dimmer_region_moved{client=\"0\",pid=\"0\""));
}

#[test]
fn a_piece_is_bounded_and_all_of_them_are_the_text() {
    let site = Site { name: "x".repeat(100).into(), ..Site::default() };
    let client = |client| Client { client, sites: vec![site.clone(); 20], ..Client::default() };
    let state = State { clients: (0..200).map(client).collect(), ..State::default() };
    let pieces: Vec<String> = {
        let measured = Measured::new(state, true);
        Text::new(Arc::new(measured), Format::OpenMetrics).collect()
    };
    let longest = pieces.iter().map(String::len).max().unwrap();
    assert!(pieces.len() > 10 && longest < 2 * PIECE, "{} {longest}", pieces.len());
    let text = pieces.concat();
    assert_eq!(text.matches("\ndimmer_region_calls_total{").count(), 4000);
    assert_eq!(text.matches("# TYPE dimmer_region_calls ").count(), 1);
}

#[test]
fn openmetrics_is_for_those_who_prefer_it() {
    #[track_caller]
    fn check(accept: &str, expected: Format) {
        assert_eq!(Format::accepted(Some(accept)), expected);
    }
    assert_eq!(Format::accepted(None), Format::Prometheus);
    check("*/*", Format::Prometheus);
    check("text/html", Format::Prometheus);
    check("text/plain, application/openmetrics-text", Format::Prometheus);
    check("application/openmetrics-text;q=0, text/plain;q=0", Format::Prometheus);
    check("application/openmetrics-text;q=x", Format::Prometheus);
    check("application/openmetrics-text", Format::OpenMetrics);
    // The headers of Prometheus 2 and 3.
    check(
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        Format::OpenMetrics,
    );
    check(
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;escaping=allow-utf-8;q=0.2,*/*;q=0.1",
        Format::OpenMetrics,
    );
}
