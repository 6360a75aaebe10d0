//! The arguments of `dimmer machines`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::common::{Json, Page};

#[derive(Args, Debug)]
pub(crate) struct Machines {
    /// A directory of records, or one record [default: the project's, which are in the program].
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) database: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) action: Action,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Lists machines, days, and what was found.
    List(Records),
    /// Shows all figures.
    Show(Records),
    /// Puts figures side by side, and shows whether days and hosts of one kind agree.
    Compare(Records),
    /// Checks records and the documentation; status 3 if a record is wrong or refutes a sentence.
    Check(Records),
    /// Measures this machine with all commands, in at most 20 minutes, into --database.
    Record {
        /// Tells hosts of one kind or runs on one day apart: `host2`, `run2`.
        #[arg(long)]
        label: Option<String>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Records {
    /// Machines, or records of one day [default: all].
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) json: Json,
    #[command(flatten)]
    pub(crate) page: Page,
}
