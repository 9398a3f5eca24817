//! The options of `starling sim run`, and values that `hunt` shares.

use std::path::PathBuf;

use clap::Args;
use starling_sim::harness::{PlantedBug, Subset};

/// The name that stands for the random run of a seed.
pub(super) const RANDOM: &str = "random";

#[derive(Debug, Args)]
pub(super) struct Run {
    /// A scenario that `list` prints, `all` for every scenario, or `random` for a random run.
    pub(super) name: String,
    /// The seed of all random choices. The same seed gives the same run, to the bit.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// The number of nodes, for all-to-all, background, node-failure and overload [default: the
    /// paper's number].
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..=1000))]
    pub(super) nodes: Option<u32>,
    /// Prints one JSON object per line; see below for its keys.
    #[arg(long)]
    pub(super) json: bool,
    /// Makes the shortest runs, to see that everything works; the figures mean nothing.
    #[arg(long)]
    pub(super) quick: bool,
    /// The directory for plots, one file each [default: the current directory; with --json: no plots].
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) svg: Option<PathBuf>,
    /// Only with `random`: the entries of the seed's plan that stay in it, as a hunt prints them.
    #[arg(long, value_name = "PART")]
    pub(super) only: Option<Subset>,
    /// Only with `random`: plants a deliberate bug, as `hunt --plant` does.
    #[arg(long, value_name = "BUG", value_parser = parse_planted_bug)]
    pub(super) plant: Option<PlantedBug>,
}

/// Finds a planted bug by its name.
pub(super) fn parse_planted_bug(name: &str) -> Result<PlantedBug, String> {
    let found = PlantedBug::ALL.into_iter().find(|bug| bug.name() == name);
    found.ok_or_else(|| {
        format!(
            "there are {}",
            PlantedBug::ALL.map(PlantedBug::name).join(", ")
        )
    })
}
