//! The graph as a drawing: marks as boxes, edges with colors by a metric and widths by time.

use dimmer_policy::phases::{Core, Counts, Mark};
use maud::{Markup, PreEscaped, html};

use super::layout::{Edge, Extent, Layout, Route, place};
use super::{PhaseGraph, words};
use crate::number::counted;

/// The most edges that are drawn: more cannot be told apart.
pub(super) const MOST_EDGES: usize = 200;

/// Both for light and for dark paper. The paper is that of the page around it, if there is one.
const STYLE: &str = "\
.phase-graph{--paper:#fcfcfb;--ink:#1d2125;--quiet:#5a6066;--box:#eef0f1}\
.phase-graph text{font:12px system-ui,sans-serif;fill:var(--ink)}\
.phase-graph .name{font-family:ui-monospace,monospace}\
.phase-graph .function{font-weight:600}\
.phase-graph .quiet{fill:var(--quiet)}\
.phase-graph .paper{fill:var(--paper)}\
.phase-graph .middle{text-anchor:middle}\
.phase-graph rect.mark{fill:var(--box);stroke:var(--quiet);stroke-width:1}\
.phase-graph rect.slow{stroke:var(--ink);stroke-width:3}\
.phase-graph .hit{stroke:transparent;stroke-width:16;fill:none}\
.phase-graph g:hover>.line{stroke-opacity:.6}\
@media(prefers-color-scheme:dark){.phase-graph{--paper:#16181b;--ink:#e3e4e1;--quiet:#a0a6ab;\
--box:#26292d}}";

/// Without a value. Like all colors of edges it is seen on light and on dark paper.
const GRAY: &str = "#8a8f94";

/// The widths of the shortest and of the longest edge.
const WIDTHS: (f64, f64) = (1.5, 9.0);

const MARGIN: f64 = 16.0;
const LINE: f64 = 16.0;
const ARROW: f64 = 10.0;
/// How far a loop reaches to the right of its box.
const LOOP: f64 = 30.0;
/// Width of the legend's text and of its scale.
const LEGEND: f64 = 460.0;
const SCALE: f64 = 160.0;

/// The widths of a character of a name, in a font in which all have the same, and, at most and on
/// average, of the digits and words of other texts.
const OF_NAME: f64 = 7.5;
const OF_TEXT: f64 = 7.2;

/// Most characters of a name.
const LONGEST: usize = 36;

/// A file of its own.
pub(super) fn file(shown: &PhaseGraph) -> String {
    render(shown, None).into_string() + "\n"
}

/// The drawing; with `link`, a box is a link to where that leads for its mark.
pub(super) fn render(shown: &PhaseGraph, link: Option<&dyn Fn(&Mark) -> String>) -> Markup {
    let drawing = Drawing::new(shown);
    let legend = drawing.legend();
    let (width, height) = (
        drawing.layout.width.max(LEGEND) + 2.0 * MARGIN,
        drawing.layout.height + 2.0 * MARGIN + LINE * (legend.len() as f64 + 3.0),
    );
    let move_to = format!("translate({MARGIN} {MARGIN})");
    let label = format!("Control-flow graph of {}", counted(drawing.marks.len(), "mark"));
    html! {
        svg.phase-graph xmlns="http://www.w3.org/2000/svg" width=(number(width))
            height=(number(height)) viewBox=(format!("0 0 {} {}", number(width), number(height)))
            role="img" aria-label=(label) {
            style { (PreEscaped(STYLE)) }
            rect.paper width="100%" height="100%" fill="#fcfcfb" {}
            g transform=(move_to) {
                @for (edge, route) in drawing.edges.iter().zip(&drawing.layout.routes) {
                    (drawing.edge(edge, route))
                }
                @for (index, mark) in drawing.marks.iter().enumerate() {
                    @match link {
                        Some(link) => a href=(link(mark)) { (drawing.mark(index)) },
                        None => (drawing.mark(index)),
                    }
                    (drawing.self_loop(index))
                }
                g transform=(format!("translate(0 {})", number(drawing.layout.height + LINE))) {
                    (drawing.scale())
                    @for (place, line) in legend.iter().enumerate() {
                        text.quiet y=(number(LINE * (place as f64 + 3.0))) { (line) }
                    }
                }
            }
        }
    }
}

/// An edge between two marks.
type Named<'a> = (&'a Mark, &'a Mark, &'a Counts);

struct Drawing<'a> {
    shown: &'a PhaseGraph,
    marks: Vec<&'a Mark>,
    edges: Vec<Named<'a>>,
    loops: Vec<Named<'a>>,
    layout: Layout,
    /// The largest share of an edge.
    largest: f64,
}

impl<'a> Drawing<'a> {
    fn new(shown: &'a PhaseGraph) -> Self {
        let drawn = shown.longest(MOST_EDGES);
        let mut marks: Vec<&Mark> = drawn.iter().flat_map(|edge| [edge.0, edge.1]).collect();
        marks.sort_unstable();
        marks.dedup();
        let largest =
            drawn.iter().map(|edge| shown.share(edge.2)).fold(f64::MIN_POSITIVE, f64::max);
        let (loops, edges): (Vec<_>, Vec<_>) = drawn.into_iter().partition(|edge| edge.0 == edge.1);
        let has_loop = |mark: &Mark| loops.iter().find(|edge| edge.0 == mark);
        let boxes: Vec<Extent> = marks
            .iter()
            .map(|mark| {
                let lines = lines(shown, mark);
                let (half, height) = size(&lines);
                let aside = has_loop(mark)
                    .map_or(0.0, |edge| LOOP + 8.0 + widest(&label(shown, edge.2), OF_TEXT));
                Extent { left: half, right: half + aside, height }
            })
            .collect();
        let find = |mark: &Mark| marks.binary_search(&mark).unwrap_or_default();
        let placed: Vec<Edge> = edges
            .iter()
            .map(|(start, end, counts)| {
                let label = label(shown, counts);
                let (right, height) =
                    (14.0 + widest(&label, OF_TEXT), LINE * label.len() as f64 + 4.0);
                let label = Extent { left: 8.0, right, height };
                Edge { start: find(start), end: find(end), label }
            })
            .collect();
        let layout = place(&boxes, &placed);
        Self { shown, marks, edges, loops, layout, largest }
    }

    fn edge(&self, edge: &Named<'_>, route: &Route) -> Markup {
        let width = self.width(edge.2);
        let (path, arrow) = path(route, width);
        let (x, y) = route.label;
        self.drawn(edge, &path, &arrow, (x + width / 2.0 + 6.0, y))
    }

    /// The loop at a mark, if it has an edge to itself.
    fn self_loop(&self, index: usize) -> Markup {
        let mark = self.marks[index];
        let Some(edge) = self.loops.iter().find(|edge| edge.0 == mark) else {
            return html! {};
        };
        let lines = lines(self.shown, mark);
        let (x, top) = self.layout.boxes[index];
        let (half, height) = size(&lines);
        let (x, middle) = (x + half, top + height / 2.0);
        let (above, below) = (number(middle - 12.0), number(middle + 8.0));
        let (side, tip) = (number(x + LOOP), number(x + ARROW - 1.0));
        let path = format!("M{} {above}C{side} {above} {side} {below} {tip} {below}", number(x));
        let half = self.width(edge.2) / 2.0 + 4.0;
        let arrow = polygon([
            (x, middle + 8.0),
            (x + ARROW, middle + 8.0 - half),
            (x + ARROW, middle + 8.0 + half),
        ]);
        self.drawn(edge, &path, &arrow, (x + LOOP, middle))
    }

    /// An edge with its numbers: on hover all of them, and some beside it.
    fn drawn(&self, edge: &Named<'_>, path: &str, arrow: &str, (x, y): (f64, f64)) -> Markup {
        let (start, end, counts) = edge;
        let color = self.color(counts);
        let mut title = vec![format!("{} -> {}", legal(start.name()), legal(end.name()))];
        title.extend(words::numbers(self.shown, counts));
        let label = label(self.shown, counts);
        let first = y - LINE * (label.len() as f64 - 1.0) / 2.0 + 4.0;
        html! {
            g {
                title { (title.join("\n")) }
                path.hit d=(path) fill="none" {}
                path.line d=(path) fill="none" stroke=(color) stroke-width=(number(self.width(counts))) {}
                polygon points=(arrow) fill=(color) {}
                @for (place, line) in label.iter().enumerate() {
                    text x=(number(x)) y=(number(first + LINE * place as f64)) { (line) }
                }
            }
        }
    }

    fn mark(&self, index: usize) -> Markup {
        let mark = self.marks[index];
        let (x, top) = self.layout.boxes[index];
        let lines = lines(self.shown, mark);
        let (half, height) = size(&lines);
        let is_slow = self.shown.core(mark) == Some(Core::Slow);
        html! {
            g {
                title { (legal(mark.name())) }
                rect.mark.slow[is_slow] x=(number(x - half)) y=(number(top)) rx="4"
                    width=(number(2.0 * half)) height=(number(height))
                    fill="#eef0f1" {}
                @for (place, line) in lines.iter().enumerate() {
                    text.middle.name.function[place == 0] x=(number(x))
                        y=(number(top + LINE * (place as f64 + 1.0) + 2.0)) { (line) }
                }
            }
        }
    }

    fn width(&self, counts: &Counts) -> f64 {
        WIDTHS.0 + (WIDTHS.1 - WIDTHS.0) * self.shown.share(counts) / self.largest
    }

    fn color(&self, counts: &Counts) -> String {
        let place = self.shown.scale.and_then(|scale| scale.place(counts));
        place.map_or_else(|| GRAY.to_owned(), color)
    }

    /// The scale of colors, with its ends.
    fn scale(&self) -> Markup {
        const PIECES: u32 = 32;
        let Some(scale) = self.shown.scale else { return html! {} };
        let (lowest, highest) = scale.ends();
        let piece = SCALE / f64::from(PIECES);
        let left = 64.0;
        html! {
            text y="12" { (words::rate(lowest)) }
            @for index in 0..PIECES {
                rect x=(number(left + piece * f64::from(index))) y="2" height="12"
                    width=(number(piece + 0.5)) fill=(color(f64::from(index) / f64::from(PIECES - 1))) {}
            }
            text x=(number(left + SCALE + 8.0)) y="12" {
                (words::rate(highest)) " " (words::meaning(self.shown.found.metric))
            }
        }
    }

    fn legend(&self) -> Vec<String> {
        let metric = words::meaning(self.shown.found.metric);
        let share = words::share_heading(self.shown);
        let has_counters = self.shown.has_counters();
        let color = if has_counters {
            format!("Color: {metric}; gray: not counted, or none.")
        } else {
            format!("Gray: the graph has no counts of {metric}.")
        };
        let width = if self.shown.shares.is_some() {
            format!("Width: {share}.")
        } else {
            "All edges are as wide: not all have a time, or cycles.".to_owned()
        };
        let slow = self.shown.found.threshold.map(|threshold| {
            format!("Thick border: a slow mark, above {}.", words::rate(threshold.value()))
        });
        let (all, drawn) =
            (self.shown.found.graph.edges().count(), self.edges.len() + self.loops.len());
        let left_out = (all > drawn).then(|| {
            format!("{} that take the least time are not drawn.", counted(all - drawn, "edge"))
        });
        [Some(color), Some(width), slow, left_out].into_iter().flatten().collect()
    }
}

/// The text in a box: the function, the position, the value.
fn lines(shown: &PhaseGraph, mark: &Mark) -> Vec<String> {
    let value = shown.found.profile.value(mark).map(|value| {
        let core = shown.core(mark).map(|core| format!(", {}", words::core(core)));
        words::rate(value) + &core.unwrap_or_default()
    });
    let names = [Some(mark.function()), mark.position()].into_iter().flatten().map(short);
    names.chain(value).collect()
}

/// The text beside an edge.
fn label(shown: &PhaseGraph, counts: &Counts) -> Vec<String> {
    let share = words::share(shown, counts);
    let value = shown.found.metric.of(counts).map(words::rate);
    let second: Vec<String> = [value, share].into_iter().flatten().collect();
    let second = Some(second.join(", ")).filter(|second| !second.is_empty());
    std::iter::once(words::calls(counts)).chain(second).collect()
}

/// Half the width, and the height, of a box with these lines.
fn size(lines: &[String]) -> (f64, f64) {
    (widest(lines, OF_NAME) / 2.0 + 10.0, LINE * lines.len() as f64 + 12.0)
}

/// The width of lines whose characters have at most this one, on average; letters beyond ASCII may
/// be as wide as high.
fn widest(lines: &[String], character: f64) -> f64 {
    let width = |line: &String| -> f64 {
        line.chars().map(|one| if one < '\u{2e80}' { character } else { 14.0 }).sum()
    };
    lines.iter().map(width).fold(0.0, f64::max)
}

/// The start and the end of a name that is too long.
fn short(name: &str) -> String {
    let characters: Vec<char> = legal(name).chars().collect();
    if characters.len() <= LONGEST {
        return characters.into_iter().collect();
    }
    let half = LONGEST / 2;
    let (start, end) = (&characters[..half], &characters[characters.len() - half + 1..]);
    start.iter().chain(&['…']).chain(end).collect()
}

/// The text without the characters that XML does not allow; names have no control characters.
fn legal(text: &str) -> String {
    text.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

/// The line of an edge, and its arrow head.
fn path(route: &Route, width: f64) -> (String, String) {
    let mut stretches = route.stretches.clone();
    let half = width / 2.0 + 4.0;
    // The line ends where its arrow head starts.
    let arrow = if route.is_upwards {
        let (x, top, bottom) = &mut stretches[0];
        let tip = *top;
        *top += ARROW;
        *bottom = bottom.max(*top);
        polygon([(*x, tip), (*x - half, *top), (*x + half, *top)])
    } else {
        let last = stretches.len() - 1;
        let (x, top, bottom) = &mut stretches[last];
        let tip = *bottom;
        *bottom -= ARROW;
        *top = top.min(*bottom);
        polygon([(*x, tip), (*x - half, *bottom), (*x + half, *bottom)])
    };
    let mut path = String::new();
    let mut before: Option<(f64, f64)> = None;
    for (x, top, bottom) in stretches {
        let (at, from, to) = (number(x), number(top), number(bottom));
        path += &match before {
            None => format!("M{at} {from}V{to}"),
            Some((x, end)) => {
                let middle = number(f64::midpoint(end, top));
                format!("C{} {middle} {at} {middle} {at} {from}V{to}", number(x))
            }
        };
        before = Some((x, bottom));
    }
    (path, arrow)
}

fn polygon(points: [(f64, f64); 3]) -> String {
    points.map(|(x, y)| format!("{},{}", number(x), number(y))).join(" ")
}

/// A coordinate.
fn number(value: f64) -> String {
    format!("{:.1}", value + 0.0)
}

/// The color of a place on the scale: from blue over violet to red, all as light.
fn color(place: f64) -> String {
    const SATURATION: f64 = 0.62;
    const LIGHTNESS: f64 = 0.56;
    let hue = 215.0 + 145.0 * place.clamp(0.0, 1.0);
    let reach = SATURATION * LIGHTNESS.min(1.0 - LIGHTNESS);
    let part = |offset: f64| {
        let at = (offset + hue / 30.0) % 12.0;
        let part = LIGHTNESS - reach * (at - 3.0).min(9.0 - at).clamp(-1.0, 1.0);
        format!("{:02x}", dimmer_processor::units::nearest(255.0 * part))
    };
    format!("#{}{}{}", part(0.0), part(8.0), part(4.0))
}
