//! `dimmer sim predict-lock`: how long a critical section must be to gain by a faster clock.

use std::process::ExitCode;

use dimmer_policy::break_even::Boosts;
use dimmer_report::predict_lock::Prediction;

use crate::{args, bad_input, model, output};

pub(crate) fn run(arguments: &args::PredictLock) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let model = model::read(arguments.model.name().unwrap_or_default())?;
    let prediction = Prediction {
        model: &model.identity.name,
        boosts: Boosts::new(&model).map_err(bad_input)?,
        section: arguments.section,
        wait: arguments.wait,
        memory_share: arguments.memory_share,
    };
    let text = prediction.text(output::screen());
    output::show(json, &prediction.document(), &text)?;
    Ok(ExitCode::SUCCESS)
}
