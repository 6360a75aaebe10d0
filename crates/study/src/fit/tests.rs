//! Fits of runs that the simulator itself gives, from known values: they are found again, what the
//! runs do not tell is said to be so, and so is what no values explain.

use std::path::Path;

use dimmer_sim::Governor;

use super::*;

/// A server with marked calls of wide code.
const SERVER: &str = r#"
schema = "dimmer/scenario/1"
name = "A server"
source = "made up for a test"
model = "i9-7940x"
cores = 2
end_us = 40_000
hand_over_us = 1.0
[[code]]
name = "scalar"
class = "scalar"
per_cycle = 1.5
[[code]]
name = "cipher"
class = "heavy-512"
per_cycle = 1.0
[[distribution]]
name = "page"
quantiles = [[0, 20], [1, 120]]
[[thread]]
name = "worker"
times = 0
cpu = 0
requests = "closed"
steps = [
    { run = "scalar", us = "page" },
    { enter = "seal" },
    { run = "cipher", instructions = 30_000 },
    { leave = "seal" },
]
[[thread]]
name = "idle"
cpu = 1
times = 0
steps = [{ sleep_us = 4_000 }, { run = "scalar", instructions = 10 }]
"#;

const HEAD: &str = "schema = 'dimmer/fit/1'\nscenario = 'server.toml'\nseeds = 4\n";
const CIPHER: &str = "scenario:thread.worker.steps.cipher.instructions";

fn reader(path: &Path) -> Result<String, String> {
    match path.to_str() {
        Some("dir/server.toml") => Ok(SERVER.to_owned()),
        _ => Err(format!("no file {}", path.display())),
    }
}

fn fit_of(text: &str) -> Result<Fit, FitFileError> {
    let read = |path: &Path| {
        if path == Path::new("dir/fit.toml") { Ok(text.to_owned()) } else { reader(path) }
    };
    Fit::read(Path::new("dir/fit.toml"), &read)
}

#[track_caller]
fn fitted(text: &str) -> Fitted {
    let fit = fit_of(text).unwrap();
    let follower = Follower { stops: &|| false, advances: &|_| {} };
    fit.carry_out(&reader, 2, &follower).unwrap()
}

/// What the server with another text gives for a metric, once for each of these seeds, each value
/// with a relative error of measuring of this standard deviation.
fn runs(changed: &[(&str, &str)], metric: Metric, seeds: &[u64], error: f64) -> Vec<f64> {
    let text = changed.iter().fold(SERVER.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    let scenario = dimmer_sim::scenario::Scenario::parse(Path::new("server.toml"), &text).unwrap();
    let model = dimmer_processor::model::builtin("i9-7940x").unwrap();
    let model = dimmer_processor::model::Model::parse(Path::new("i9"), model).unwrap();
    let mut chance = fastrand::Rng::with_seed(seeds[0] * 7919 + u64::from(metric as u8));
    let run = |seed: &u64| {
        let ran = scenario.run(&model, Governor::Hardware, *seed, (), &|_| false);
        let value = metric.of(&ran.unwrap().0, None, None).unwrap();
        // Twelve even numbers added up are nearly normal.
        let drawn = (0..12).map(|_| chance.f64()).sum::<f64>() - 6.0;
        value * (1.0 + error * drawn)
    };
    seeds.iter().map(run).collect()
}

fn parameter(key: &str, low: f64, high: f64) -> String {
    format!("[[parameter]]\nkeys = ['{key}']\nlow = {low:?}\nhigh = {high:?}\n")
}

fn target(metric: Metric, measured: &[f64], more: &str) -> String {
    format!("[[target]]\nmetric = '{}'\nmeasured = {measured:?}\n{more}\n", metric.name())
}

#[test]
fn a_known_value_is_found_again_as_often_as_the_interval_says() {
    let truth = 52_000.0;
    let changed = [("30_000", "52_000")];
    let mut hits = 0;
    for set in 0..24_u64 {
        let seeds: Vec<u64> = (100 + 10 * set..105 + 10 * set).collect();
        let rate = runs(&changed, Metric::Requests, &seeds, 0.01);
        let late = runs(&changed, Metric::P90, &seeds, 0.01);
        let text = format!(
            "{HEAD}{}{}{}",
            parameter(CIPHER, 1e3, 1e6),
            target(Metric::Requests, &rate, ""),
            target(Metric::P90, &late, "")
        );
        let found = fitted(&text);
        let Known::Within(low, high) = found.parameters[0].known() else { panic!("{found:?}") };
        assert!(high - low < 0.4 * truth, "{low} to {high}");
        hits += u32::from((low..=high).contains(&truth));
    }
    // Of 24 with 95 % each, fewer than 20 have a probability of 0.7 %.
    assert!(hits >= 20, "{hits} of 24");
}

#[test]
fn a_parameter_without_effect_is_told_as_such() {
    let rate = runs(&[], Metric::Requests, &[100, 101, 102], 0.01);
    let idle = parameter("scenario:thread.idle.steps.2.instructions", 1.0, 100.0);
    let found = fitted(&format!("{HEAD}{idle}{}", target(Metric::Requests, &rate, "")));
    assert_eq!(found.parameters[0].known(), Known::Nothing);
}

#[test]
fn parameters_of_which_only_one_combination_matters_are_told_as_such() {
    let rate = runs(&[], Metric::Requests, &[100, 101, 102], 0.01);
    let late = runs(&[], Metric::P90, &[100, 101, 102], 0.01);
    let text = format!(
        "{HEAD}{}{}{}{}",
        parameter(CIPHER, 3e3, 3e5),
        parameter("scenario:code.cipher.per_cycle", 0.1, 10.0),
        target(Metric::Requests, &rate, ""),
        target(Metric::P90, &late, "")
    );
    let found = fitted(&text);
    for of in &found.parameters {
        assert!(!matches!(of.known(), Known::Within(..)), "{of:?}");
    }
}

#[test]
fn two_parameters_are_found_again() {
    let changed = [("30_000", "52_000"), ("[0, 20], [1, 120]", "[0, 30], [1, 180]")];
    let seeds = [100, 101, 102, 103, 104];
    let text = format!(
        "{HEAD}{}[[parameter]]\nname = 'page'\nkeys = ['scenario:distribution.page.quantiles.*.2']\n\
         factor = true\nlow = 0.2\nhigh = 5.0\n{}{}{}",
        parameter(CIPHER, 1e3, 1e6),
        target(Metric::Requests, &runs(&changed, Metric::Requests, &seeds, 0.005), ""),
        target(Metric::Instructions, &runs(&changed, Metric::Instructions, &seeds, 0.005), ""),
        target(Metric::P90, &runs(&changed, Metric::P90, &seeds, 0.005), "check = true"),
    );
    let found = fitted(&text);
    let known: Vec<Known> = found.parameters.iter().map(Found::known).collect();
    let [Known::Within(low, high), Known::Within(least, most)] = known[..] else { panic!() };
    assert!((low..=high).contains(&52_000.0) && (least..=most).contains(&1.5), "{known:?}");
    assert_eq!(found.targets[2].agrees, Some(true));
}

#[test]
fn what_no_value_explains_is_told_as_such() {
    // The server sleeps in each request, of which the scenario knows nothing.
    let sleeps = [("{ enter = \"seal\" },", "{ sleep_us = 50 }, { enter = \"seal\" },")];
    let seeds = [100, 101, 102, 103, 104];
    let text = |sleeps: &[(&str, &str)]| {
        let of = |metric| target(metric, &runs(sleeps, metric, &seeds, 0.01), "");
        let (rate, cpu) = (of(Metric::Requests), of(Metric::CpuPerRequest));
        let held = target(Metric::P90, &runs(sleeps, Metric::P90, &seeds, 0.01), "check = true");
        format!("{HEAD}{}{rate}{cpu}{held}", parameter(CIPHER, 1e3, 1e6))
    };
    let (right, wrong) = (text(&[]), text(&sleeps));
    let of = |text: &str| (fit_of(text).unwrap(), fitted(text));
    let ((fit, found), (_, wrong)) = (of(&right), of(&wrong));
    assert!(found.is_sound(&fit) && !found.overall.is_misfit(), "{found:?}");
    assert!(!wrong.is_sound(&fit) && wrong.overall.is_misfit(), "{wrong:?}");
    assert!(wrong.targets[0].difference_pct() > 3.0 && wrong.targets[1].difference_pct() > 3.0);
    let text = fit.scenario(&wrong);
    assert!(text.contains("# NOT REPRODUCED: the differences are larger than scatter"), "{text}");
}

#[test]
fn what_is_measured_once_has_an_error_by_what_is_left_or_an_assumed_one() {
    let once = |metric| target(metric, &runs(&[], metric, &[100], 0.0), "");
    let cipher = parameter(CIPHER, 1e3, 1e6);
    let one = fitted(&format!("{HEAD}{cipher}{}", once(Metric::Requests)));
    assert_eq!(one.overall.relative_error, Some(RelativeError::Assumed(0.01)));
    let several = [Metric::Requests, Metric::P90, Metric::CpuPerRequest].map(once).concat();
    let several = fitted(&format!("{HEAD}{cipher}{several}"));
    let Some(RelativeError::Estimated(error)) = several.overall.relative_error else { panic!() };
    assert!(error > 0.0 && error < 0.05, "{error}");
    for found in [one, several] {
        let Known::Within(low, high) = found.parameters[0].known() else { panic!("{found:?}") };
        assert!((low..=high).contains(&30_000.0), "{low} to {high}");
        assert_eq!((found.overall.chi_squared, found.overall.probability), (None, None));
    }
}

#[test]
fn what_is_best_at_a_bound_is_told_as_such() {
    let seeds: Vec<u64> = (100..110).collect();
    let rate = target(Metric::Requests, &runs(&[], Metric::Requests, &seeds, 0.01), "");
    let found = fitted(&format!("{HEAD}{}{rate}", parameter(CIPHER, 1e3, 1e4)));
    let Known::AtLeast(low) = found.parameters[0].known() else { panic!("{found:?}") };
    assert!(low > 8e3 && found.parameters[0].value == 1e4, "{found:?}");
    // There is one target for one parameter, and yet the document has how far the best is away.
    assert!(found.overall.freedom == 1 && found.targets[0].agrees == Some(false), "{found:?}");
}

#[test]
fn a_value_of_a_model_and_a_ratio_of_mechanisms_are_fitted_and_written_with_their_origin() {
    let rate = |governor: &str| {
        let held = target(Metric::Lowered, &[0.7, 0.71, 0.72], "");
        held.replace("measured", &format!("{governor}\nmeasured"))
    };
    let hold = parameter("model:release.hold_ns", 1e4, 6e5);
    let ratio = "over = 'delegate'\nset = { 'scenario:hand_over_us' = 2 }";
    let text = format!("{HEAD}{hold}{}", rate(ratio));
    let fit = fit_of(&text).unwrap();
    assert_eq!(fit.targets[0].name, "lowered_ratio over delegate, hand_over_us = 2");
    let text = format!("{HEAD}{hold}{}", rate(""));
    let (fit, found) = (fit_of(&text).unwrap(), fitted(&text));
    assert_eq!(fit.is_in(), (false, true));
    let Known::Within(low, high) = found.parameters[0].known() else { panic!("{found:?}") };
    let written = fit.model(&found);
    let model = dimmer_processor::model::Model::parse(Path::new("new"), &written).unwrap();
    let hold = model.release.hold_ns.unwrap();
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-5;
    assert!(close(hold.value as f64, found.parameters[0].value), "{hold:?}");
    let ends = hold.ci95.unwrap();
    assert!(close(ends.0 as f64, low) && close(ends.1 as f64, high), "{hold:?}");
    assert!(hold.source.starts_with("fitted by `dimmer sim fit dir/fit.toml`"), "{}", hold.source);
    assert!(written.starts_with("# Of i9-7940x, fitted by `dimmer sim fit dir/fit.toml`:\n"));
}

#[test]
fn the_result_depends_neither_on_threads_nor_on_the_time() {
    let late = target(Metric::P90, &runs(&[], Metric::P90, &[100, 101, 102], 0.01), "");
    let fit = fit_of(&format!("{HEAD}{}{late}", parameter(CIPHER, 1e3, 1e6))).unwrap();
    let follower = Follower { stops: &|| false, advances: &|_| {} };
    let [one, two] = [1, 2].map(|jobs| fit.carry_out(&reader, jobs, &follower).unwrap());
    assert_eq!(one, two);
    let stopped = Follower { stops: &|| true, advances: &|_| {} };
    let error = fit.carry_out(&reader, 1, &stopped).unwrap_err();
    assert!(matches!(error, FitError::Stopped), "{error}");
}

/// At the upper bound the first request takes longer than the scenario.
#[test]
fn values_at_which_no_request_is_served_are_no_error() {
    let late = target(Metric::P90, &runs(&[], Metric::P90, &[100, 101, 102], 0.01), "");
    let found = fitted(&format!("{HEAD}{}{late}", parameter(CIPHER, 1e3, 1e9)));
    let Known::Within(low, high) = found.parameters[0].known() else { panic!("{found:?}") };
    assert!((low..=high).contains(&30_000.0), "{low} to {high}");
}

/// The worker has executed its cipher ten times long before the end, whatever the length of pages.
#[test]
fn all_seeds_run_if_targets_are_equal_by_chance() {
    let fixed = "code = 'cipher'\nset = { 'scenario:thread.worker.times' = 10 }";
    let rate = target(Metric::Instructions, &[7.4e6, 7.5e6], fixed);
    let found = fitted(&format!("{HEAD}{}{rate}", parameter(CIPHER, 1e4, 1e5)));
    let Known::Within(low, high) = found.parameters[0].known() else { panic!("{found:?}") };
    assert!((low..=high).contains(&30_000.0), "{low} to {high}");
    assert_eq!(found.runs, 4 * found.tried + 2);
}

/// Checks the message for a fit of these parameters and targets.
#[track_caller]
fn refused(text: &str, expected: &str) {
    let error = fit_of(&format!("{HEAD}{text}")).unwrap_err().to_string();
    assert_eq!(error, format!("dir/fit.toml: {expected}"));
}

#[test]
fn wrong_fits_are_refused_with_their_place_and_what_is_accepted() {
    let cipher = parameter(CIPHER, 1e3, 1e6);
    let rate = target(Metric::Requests, &[1.0, 2.0], "");
    let of = |key: &str| format!("{}{rate}", parameter(key, 1.0, 2.0));
    refused("", "0 parameters, expected a `[[parameter]]` for each of 1 to 3");
    refused(
        &cipher,
        "0 targets to fit, expected a `[[target]]` without `check` for each of the 1 parameters, or more",
    );
    refused(
        &of("code.x"),
        "line 4: parameter `code.x`: key `code.x`: expected `scenario:` or `model:` and a path, as in `scenario:code.scalar.per_cycle`",
    );
    refused(
        &of("scenario:code.x.per_cycle"),
        "line 4: parameter `scenario:code.x.per_cycle`: key `scenario:code.x.per_cycle`: server.toml: no `x` in `code`, expected one of cipher, scalar",
    );
    refused(
        &of("model:release.hold"),
        "line 4: parameter `model:release.hold`: key `model:release.hold`: i9-7940x: no `hold` in `release`, expected one of extended_class, extended_level, extended_ns, extended_share, extended_share_beside, hold_ns, stall_ns",
    );
    refused(
        &parameter(CIPHER, 2.0, 1.0),
        &format!(
            "line 6: parameter `{CIPHER}`: `low` is 2 and `high` is 1, expected finite numbers, the first less than the second"
        ),
    );
    refused(
        &parameter(CIPHER, 0.0, 1.0),
        &format!(
            "line 6: parameter `{CIPHER}`: at `low` = 0: dir/server.toml: line 20: thread `worker`, step 3: `instructions` is 0, expected 1 to 1000000000000"
        ),
    );
    refused(
        &format!("{cipher}{cipher}"),
        &format!("line 8: parameter `{CIPHER}`: it stands twice, expected each once"),
    );
    refused(
        &format!(
            "{cipher}name = 'other'\n{}",
            cipher.replace("[[parameter]]", "[[parameter]]\nname = 'n'")
        ),
        &format!("line 9: parameter `n`: `{CIPHER}` is also another parameter's, or named twice"),
    );
    let target = |more: &str| format!("{cipher}[[target]]\n{more}\n");
    refused(
        &target("metric = 'speed'"),
        "line 9: target `speed`: `metric` is \"speed\", expected one of requests_per_s, instructions_per_s, mean_us, p50_us, p90_us, p99_us, cpu_us_per_request, cpu_s, finish_s, watts, level_changes_per_s, lowered_ratio",
    );
    refused(
        &target("metric = 'cpu_s'"),
        "line 8: target `cpu_s`: expected `measured`, one or more values, or `runs`, the file that has them",
    );
    refused(
        &target("metric = 'cpu_s'\nmeasured = [1, nan]"),
        "line 8: target `cpu_s`: a measured value is NaN, expected numbers from 0 to 1e18",
    );
    refused(
        &target("metric = 'cpu_s'\nmeasured = [1.0]\nerror = 0"),
        "line 11: target `cpu_s`: `error` is 0, expected a standard error above 0, up to 1e18",
    );
    refused(
        &target("metric = 'watts'\nprogram = 'worker'\nmeasured = [1]"),
        "line 10: target `watts worker`: watts is one of the whole machine: without `program` and `code`",
    );
    refused(
        &target("metric = 'cpu_s'\nmechanism = 'none'\nover = 'none'\nmeasured = [1]"),
        "line 11: target `cpu_s none over none`: `over` is \"none\" as well: the ratio is 1",
    );
    refused(
        &target(
            "metric = 'cpu_s'\nmeasured = [1]\n[[target]]\nmetric = 'p90_us'\nmeasured = [1, 2]",
        ),
        "target `cpu_s` has one value, others have scatter: how much it counts is not known; give its standard error, as in `error = 0.5`, or repeats",
    );
    refused(
        &target("metric = 'cpu_s'\nruns = { file = 'x.json', values = 'a' }"),
        "line 10: target `cpu_s`: `runs`: no file dir/x.json",
    );
    refused(
        &target(&format!("metric = 'cpu_s'\nset = {{ '{CIPHER}' = 3 }}\nmeasured = [1]")),
        &format!(
            "line 10: target `cpu_s, thread.worker.steps.cipher.instructions = 3`: `set`: `{CIPHER}` is a parameter"
        ),
    );
}

#[test]
fn targets_that_cannot_be_simulated_are_refused_with_the_reason() {
    let of = |more: &str| {
        let text = format!(
            "{HEAD}{}[[target]]\nmeasured = [1.0, 1.1]\n{more}",
            parameter(CIPHER, 1e3, 1e6)
        );
        let follower = Follower { stops: &|| false, advances: &|_| {} };
        let fit = fit_of(&text).unwrap();
        fit.carry_out(&reader, 2, &follower).unwrap_err().to_string()
    };
    let error = of("metric = 'p90_us'\nprogram = 'idle'\nname = 't'");
    assert_eq!(
        error,
        "target `t`: no thread serves requests: expected another `metric`, or a thread with `requests` in the scenario"
    );
    let error = of("metric = 'cpu_s'\nprogram = 'x'");
    assert_eq!(error, "target `cpu_s x`: no `program` \"x\", expected one of idle, worker");
    let error = of("metric = 'cpu_s'\ncode = 'x'");
    assert_eq!(error, "target `cpu_s x`: no `code` \"x\", expected one of cipher, scalar");
    let error = of("metric = 'cpu_s'\nmechanism = 'phases'");
    let none = "at none of the values that were tried, all targets have a value: phases: migrating \
                at marks needs `[phases]` in the scenario";
    assert_eq!(error, none);
    let error = of("metric = 'finish_s'");
    assert!(error.contains("target `finish_s` has no value at "), "{error}");
}
