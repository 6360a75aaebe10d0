//! `dimmerd`: the policy server. Reads arguments, and writes a log.
#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, reason = "a command speaks of what it cannot do")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, ValueEnum};
use clap_mangen::Man;
use dimmer_daemon::metrics::http::Listener;
use dimmer_daemon::server::{Connector, Options, Place, Server, ServerError, Signals};
use dimmer_daemon::{log, machine, metrics};
use dimmer_host::root::Root;
use dimmer_watch::address::Address;
use dimmer_watch::settings::{Settings, SettingsError};
use sd_notify::NotifyState;
use tracing::{error, info};

/// Decides continuously which regions of programs are worth moving to dedicated cores
///
/// Programs that use Dimmer's library find the server by themselves; `dimmer top` shows what it
/// does. The server needs no privileges. SIGHUP makes it read its configuration again. When it
/// ends, programs go on, and all of their work stays where it is.
#[derive(Debug, Parser)]
#[command(name = "dimmerd", version, max_term_width = 100)]
struct Arguments {
    /// The configuration file; docs/dimmerd.md describes the keys.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Socket at which programs find the server. Default: $DIMMER_SOCKET, or if that is not set,
    /// /run/dimmer/socket for root and $XDG_RUNTIME_DIR/dimmer/socket for others.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Checks the configuration, and the processor model and the group that it names, and exits.
    #[arg(long)]
    check: bool,
    /// Format of the log on standard error.
    #[arg(long, value_enum, default_value_t = Log::Text)]
    log: Log,
    /// Also logs each decision.
    #[arg(long, short)]
    verbose: bool,
    /// Writes the manual page to standard output, and exits.
    #[arg(long, hide = true)]
    manual: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Log {
    Text,
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dimmerd: {error:#}");
            let is_group = matches!(error.downcast_ref(), Some(ServerError::NoGroup(_)));
            let is_input = is_group || error.is::<SettingsError>();
            ExitCode::from(if is_input { 2 } else { 1 })
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.manual {
        let page = Man::new(Arguments::command()).manual("Dimmer").section("8");
        return page.render(&mut std::io::stdout()).context("cannot write the manual page");
    }
    let settings = match &arguments.config {
        Some(path) => Settings::read(path)?,
        None => Settings::default(),
    };
    if arguments.check {
        dimmer_daemon::server::check_group(&Root::live(), &settings)?;
        let named = machine::named_model(&settings);
        return named.map(drop).map_err(|what| {
            let path = arguments.config.clone().unwrap_or_default();
            SettingsError::Wrong { path, what: format!("`server.model`: {what}") }.into()
        });
    }
    let format = match arguments.log {
        Log::Text => log::Format::Text,
        Log::Json => log::Format::Json,
    };
    let _log = log::begin(format, arguments.verbose, std::io::stderr()).context("cannot log")?;
    let signals = Signals::install().context("cannot take signals")?;
    let passed = sd_notify::listen_fds().ok().and_then(|mut files| files.next());
    let inherited = passed.map(dimmer_protocol::inherit).transpose();
    let inherited = inherited.context("what the service manager has passed is no socket")?;
    // Programs find a passed socket at its own path, whatever the default path is.
    let place = inherited.as_ref().and_then(dimmer_protocol::place);
    let socket = place.map_or_else(|| socket(arguments), Ok)?;
    let listen = settings.listen().map_err(anyhow::Error::msg)?;
    // Scrapers that connect before the server listens wait for it.
    let metrics = listen.map(|address| Metrics::bind(&address)).transpose()?;
    let is_per_client = settings.is_per_client();
    let (root, file) = (Root::live(), arguments.config.clone());
    let options = Options { root, socket: socket.clone(), inherited, file, settings };
    let mut server = Server::new(options, signals)?;
    let serve = |metrics: Metrics| metrics.serve(server.connector(), is_per_client);
    let _place = metrics.map(serve).transpose()?;
    tell(&server, &socket);
    notify(&[NotifyState::Ready]);
    server.run(&mut |read| {
        match read {
            Ok(true) => info!("configuration reloaded"),
            Ok(false) => info!("SIGHUP ignored: started without --config"),
            Err(error) => {
                error!("the configuration stays as it was: {:#}", anyhow::Error::from(error));
            }
        }
        notify(&[NotifyState::Ready]);
    })?;
    notify(&[NotifyState::Stopping]);
    Ok(())
}

/// The socket at which metrics will be served.
struct Metrics {
    listener: Listener,
    /// Removes a Unix socket when dropped.
    place: Option<Place>,
}

impl Metrics {
    fn bind(address: &Address) -> anyhow::Result<Self> {
        let listener = Listener::bind(address);
        let listener = listener.with_context(|| format!("cannot tell metrics at {address}"))?;
        let place = match address {
            Address::Tcp(_) => None,
            Address::Unix(path) => Some(Place::new(path)),
        };
        Ok(Self { listener, place })
    }

    /// Serves metrics from now on.
    fn serve(self, server: Connector, is_per_client: bool) -> anyhow::Result<Option<Place>> {
        metrics::serve(self.listener, server, is_per_client).context("cannot tell metrics")?;
        Ok(self.place)
    }
}

/// The socket at which programs find the server.
fn socket(arguments: &Arguments) -> anyhow::Result<PathBuf> {
    let named = arguments.socket.clone();
    // An empty variable counts as none.
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let named = named.or_else(|| variable(dimmer_protocol::SOCKET).map(PathBuf::from));
    if let Some(path) = named {
        return Ok(path);
    }
    let directory = if rustix::process::geteuid().is_root() {
        PathBuf::from("/run")
    } else {
        let own = variable("XDG_RUNTIME_DIR").context(
            "this user has no directory for sockets (XDG_RUNTIME_DIR); --socket says where to listen",
        )?;
        PathBuf::from(own)
    };
    Ok(directory.join("dimmer/socket"))
}

/// Notifies the service manager, if there is one.
fn notify(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

/// Logs what the server can do here, and what it cannot do and why.
fn tell(server: &Server, socket: &std::path::Path) {
    let found = server.found();
    info!(socket = %socket.display(), "listening");
    if !rustix::process::geteuid().is_root() && !server.is_inherited() {
        info!(
            "programs of this user alone are served; as root, or started by systemd, it serves all"
        );
    }
    if server.is_inherited() && server.settings().socket_access() != (None, None) {
        info!("server.socket_group and server.socket_mode do not apply: the socket is systemd's");
    }
    let acting_pct = server.settings().acting_pct();
    if acting_pct <= 0.0 {
        info!("observes only, and moves nothing: policy.acting_pct is 0");
    } else if acting_pct < 100.0 {
        info!(acting_pct, "acts on this share of programs, and only observes the others");
    }
    match &found.no_core {
        Some(why) => info!(why, "no core can be dedicated: all work stays where it is"),
        None => {
            let cpus = dimmer_host::root::format_cpu_list(&found.spare.cpus);
            info!(
                cpus,
                "hardware threads that may be dedicated, by keeping programs that use Dimmer off them"
            );
        }
    }
    match (&found.no_prices, &found.prices) {
        (Some(why), _) => info!(why, "what calls cost is not known: the loop has to find out"),
        (None, Some(prices)) => {
            let costs = prices.calls.iter().map(|cost| cost.most_ns(f64::INFINITY));
            let costs = costs.fold(0.0, f64::max);
            info!(hand_over_ns = prices.hand_over_ns, call_ns_at_most = costs, "prices");
        }
        (None, None) => {}
    }
    match (&found.no_counters, &found.counted) {
        (Some(why), _) => info!(why, "nothing is counted of programs"),
        (None, Some(counted)) => {
            let what = counted.what();
            info!(what, "counted of programs that the kernel lets this user count");
        }
        (None, None) => {}
    }
}
