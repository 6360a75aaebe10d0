//! The arguments of the commands for the policy daemon, `dimmerd`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::common::{Json, Lasting, Socket, duration};

#[derive(Debug, Subcommand)]
pub(crate) enum Daemon {
    /// Shows live what the daemon does.
    Top(Top),
    /// Records what the daemon sees and decides.
    Record(Record),
    /// Runs a recording through the policy that made it, or through another.
    Replay(Replay),
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
On a terminal this is a live screen, which also survives restarts of the daemon; `?` explains its keys and columns. Without a terminal, \
and with --once, it prints a table.

Examples:
  dimmer top
  dimmer top --once
  dimmer top --json | jq '.clients[].sites[]'")]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) socket: Socket,

    /// Prints a table of one interval and ends.
    #[arg(long)]
    pub(crate) once: bool,

    /// The time between two updates.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    pub(crate) interval: Duration,

    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Ends with Ctrl-C, after --duration, or when the daemon ends. Each line is written as soon as it is complete. Only root and the daemon's \
own user may record. docs/dimmerd.md describes the format.

Examples:
  dimmer daemon record morning.jsonl
  dimmer daemon record --duration 60s - | gzip >minute.jsonl.gz")]
pub(crate) struct Record {
    /// The file; `-` is standard output.
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) socket: Socket,

    #[command(flatten)]
    pub(crate) duration: Lasting,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
A policy's decisions change what programs do, and a recording has only what they did under the daemon's own. So a replay shows what \
another policy would have decided at each moment, not what would have come of it.

The exit status is 3 if a replay with the recorded settings, from the daemon's start, gives other decisions than the daemon's.

Examples:
  dimmer daemon replay morning.jsonl
  dimmer daemon replay morning.jsonl --config thresholds.toml --json")]
pub(crate) struct Replay {
    /// A recording of `dimmer daemon record`.
    pub(crate) file: PathBuf,

    /// The policy to replay it with: a configuration of `dimmerd` [default: the recorded one].
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) json: Json,
}
