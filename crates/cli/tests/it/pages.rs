//! All pages (`--report`) in a browser, narrow and wide, on a light and on a dark screen: nothing
//! is wider than the page, and text can be read.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::victims::{self, Victims};
use crate::{dimmer, stderr};

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Widths of windows: a telephone, a large screen.
const WIDTHS: [u32; 2] = [400, 1600];
/// The values of Chromium's setting `preferredColorScheme`.
const DARK_AND_LIGHT: [u32; 2] = [0, 1];

/// Loads each page in frames of these widths and writes into its body what it measured: name,
/// width, width of the content, colors of paper and ink.
const HARNESS: &str = "
const found = [];
let left = pages.length * widths.length;
for (const [name, page] of pages) for (const width of widths) {
    const frame = document.createElement('iframe');
    frame.style.width = width + 'px';
    frame.onload = () => {
        const inside = frame.contentDocument;
        const body = frame.contentWindow.getComputedStyle(inside.body);
        const colors = [body.backgroundColor, body.color];
        found.push([name, width, inside.documentElement.scrollWidth, ...colors]);
        frame.remove();
        left -= 1;
        if (left === 0) document.body.textContent = JSON.stringify(found);
    };
    frame.srcdoc = page;
    document.body.append(frame);
}
";

fn browser() -> Option<&'static str> {
    let starts = |name: &&str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    BROWSERS.into_iter().find(starts)
}

/// What a browser measures in the pages.
fn measured(browser: &str, directory: &Path, pages: &[(&str, String)], scheme: u32) -> Vec<Value> {
    // `</` would end the script.
    let data = json!(pages).to_string().replace("</", "<\\/");
    let mut harness = String::from("<!DOCTYPE html><meta charset=\"utf-8\"><body></body>");
    write!(harness, "<script>const pages = {data}, widths = {WIDTHS:?};{HARNESS}</script>")
        .unwrap();
    let file = directory.join("harness.html");
    fs::write(&file, harness).unwrap();
    let profile = format!("--user-data-dir={}", directory.join("browser").display());
    let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        .args([&profile, &scheme, "--virtual-time-budget=60000", "--dump-dom"])
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = shown.split_once("<body>[").and_then(|(_, rest)| rest.split_once("</body>"));
    let (found, _) = found.unwrap_or_else(|| panic!("{browser}: {}", stderr(&output)));
    serde_json::from_str(&format!("[{found}")).unwrap()
}

/// The brightness of a color `rgb(R, G, B)`: the sum of its parts.
fn brightness(color: &Value) -> u32 {
    let color = color.as_str().unwrap();
    let parts = color.trim_start_matches("rgb(").trim_end_matches(')').split(", ");
    parts.map(|part| part.parse::<u32>().unwrap()).sum()
}

/// What is wrong with measurements on a light or dark screen.
fn problems(measured: &[Value], is_dark: bool) -> Vec<String> {
    let mut problems = Vec::new();
    for page in measured {
        if page[2].as_u64() > page[1].as_u64() {
            problems.push(format!("{}: wider than {}: {}", page[0], page[1], page[2]));
        }
        let (paper, ink) = (brightness(&page[3]), brightness(&page[4]));
        let (dark, light) = if is_dark { (paper, ink) } else { (ink, paper) };
        if dark + 300 > light {
            problems.push(format!("{}: {} on {}", page[0], page[4], page[3]));
        }
    }
    problems
}

/// The pages of all commands that make one.
fn pages(directory: &Path) -> Vec<(&'static str, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = |path: &str| root.join(path).to_str().unwrap().to_owned();
    let governors = file("scenarios/bursts-in-a-sieve.toml");
    let loops = file("scenarios/primesieve-moved.toml");
    let graph = file("crates/policy/src/phases/tests/mysql.txt");
    let mut commands: Vec<(&str, Vec<&str>)> = vec![
        ("governors", vec!["sim", "compare", &governors, "--repeat", "1"]),
        ("loops", vec!["sim", "compare", &loops, "--loops", "none,always", "--repeat", "1"]),
        ("validate", vec!["sim", "validate", "--paper", "000"]),
        ("phases", vec!["phases", &graph]),
        ("probe", vec!["probe", "--mode", "episode", "--kernel", "vfmadd231sd-scalar-unrolled"]),
    ];
    let victims = Victims::compile(&["calls"]);
    let calls = victims.as_ref().map(|victims| victims.path("calls")).unwrap_or_default();
    if victims.is_some() {
        victims::library();
        let options = ["observe", "--classes", "scalar", "--model", "i9-7940x", "--", &*calls];
        commands.push(("observe", options.to_vec()));
    }
    let page = |(name, mut arguments): (&'static str, Vec<&str>)| {
        let file = directory.join(format!("{name}.html"));
        // Before `--` and the program's own arguments.
        let at = arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len());
        arguments.splice(at..at, ["--report", file.to_str().unwrap()]);
        let output = dimmer(directory, &arguments);
        let text = fs::read_to_string(&file);
        (name, text.unwrap_or_else(|_| panic!("{arguments:?}: {}", stderr(&output))))
    };
    commands.into_iter().map(page).collect()
}

#[test]
fn pages_fit_windows_and_can_be_read_on_light_and_dark_screens() {
    let Some(browser) = browser() else {
        println!("SKIPPED: no browser (chromium)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let pages = pages(directory.path());
    for (name, page) in &pages {
        assert!(page.len() > 2_000, "{name} is empty");
        // What is not there cannot fail.
        assert!(!page.contains("<script"), "{name} has a script");
    }
    for scheme in DARK_AND_LIGHT {
        let found = measured(browser, directory.path(), &pages, scheme);
        assert_eq!(found.len(), pages.len() * WIDTHS.len());
        assert_eq!(problems(&found, scheme == DARK_AND_LIGHT[0]), Vec::<String>::new());
    }
    // The check sees what it is for.
    let wide = "<!DOCTYPE html><body style=\"background: gray; color: gray\">\
                <p style=\"width: 900px\">gray"
        .to_owned();
    let found = measured(browser, directory.path(), &[("wide", wide)], DARK_AND_LIGHT[0]);
    assert_eq!(problems(&found, true).len(), 3, "{found:?}");
}
