//! What all pages have in common: head, style, figures, tables that can be unfolded.
//!
//! Nothing is fetched and nothing is executed: the style sheet and the plots are in the page, and
//! parts that can be unfolded are `<details>`.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::machine::MachineDescription;
use crate::plot::{DrawError, Figure};

const STYLE: &str = include_str!("style.css");

/// A page cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// A plot cannot be drawn, which happens in memory and has no cause to fail.
    #[error("cannot draw the plots of {of}")]
    Plot {
        /// What the plots are about.
        of: String,
        /// What the library says.
        #[source]
        error: DrawError,
    },
}

/// Adds to an error of a plot what the plot is about.
pub(crate) trait Drawing<T> {
    fn of(self, of: &str) -> Result<T, PageError>;
}

impl<T> Drawing<T> for Result<T, DrawError> {
    fn of(self, of: &str) -> Result<T, PageError> {
        self.map_err(|error| PageError::Plot { of: of.to_owned(), error })
    }
}

/// A page: its subject, its headline and first sentences, and the rest.
pub(crate) fn page(
    (command, subject): (&str, &str),
    title: &str,
    sentences: &[String],
    main: &Markup,
    machine: &MachineDescription,
) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (command) ": " (subject) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    p.kicker { (command) " · " (subject) }
                    h1 { (title) }
                    @for sentence in sentences { p.lede { (prose(sentence)) } }
                }
                main { (main) }
                footer { p { "dimmer " (machine.version) " · " (machine.time) } }
            }
        }
    }
}

/// Formats text in which names are between backticks.
pub(crate) fn prose(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// A command line, which breaks between its words only.
pub(crate) fn command(text: &str) -> Markup {
    html! {
        code {
            @for (index, word) in text.split(' ').enumerate() {
                @if index > 0 { " " }
                span.word { (word) }
            }
        }
    }
}

/// A plot, its caption, and its data.
pub(crate) fn figure(figure: &Figure) -> Markup {
    html! {
        figure {
            (figure.plot)
            figcaption { (prose(&figure.caption)) }
            (unfold("Data", &figure.header, &figure.rows))
        }
    }
}

/// A table that can be unfolded.
pub(crate) fn unfold(summary: &str, header: &[String], rows: &[Vec<String>]) -> Markup {
    html! {
        details {
            summary { (summary) }
            div.scroll tabindex="0" {
                table {
                    thead { tr { @for title in header { th scope="col" { (title) } } } }
                    tbody {
                        @for row in rows { tr { @for cell in row { td { (cell) } } } }
                    }
                }
            }
        }
    }
}
