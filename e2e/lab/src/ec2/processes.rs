//! moto's server and `nodewright-ec2` before it, as child processes.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::{client::legacy, rt::TokioExecutor};

use crate::{
    cloud::DriverProgram,
    ec2::{Account, Ec2Error, MOTO_VARIABLE, Moto},
    process::{Process, ProcessError, executable, free_ports},
};

/// How long a process may take until it answers. moto reads its images, and on a computer that also compiles that takes long.
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// Time between two checks of a wait.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The environment variables that override the paths of executables.
const PROXY_VARIABLE: &str = "NODEWRIGHT_EC2_BIN";
const DRIVER_VARIABLE: &str = "NODEWRIGHT_DRIVER_AWS_BIN";

/// How an EC2 is started.
#[derive(Clone, Debug, Default)]
pub struct Ec2Options {
    /// The kubeconfig of the cluster that VMs join. `None`: no cluster.
    pub kubeconfig: Option<PathBuf>,
    /// More flags of `nodewright-ec2`, see [`Arguments`](crate::ec2::command::Arguments).
    pub flags: Vec<String>,
}

/// moto's server as a process. Dropping this kills it.
#[derive(Debug)]
pub struct MotoServer {
    process: Process,
    moto: Moto,
}

impl MotoServer {
    /// Starts moto, and waits until it answers. `describe` makes a process of its name, program and arguments.
    pub async fn start(describe: impl Fn(&str, PathBuf, Vec<String>) -> Process) -> Result<Self, Ec2Error> {
        let [port]: [u16; 1] = free_ports()?;
        let program = executable("moto_server", MOTO_VARIABLE)?;
        let arguments = ["-H", "127.0.0.1", "-p", &port.to_string()].map(str::to_owned).to_vec();
        let mut process = describe("moto", program, arguments);
        process.start()?;
        let moto = Moto::new(format!("http://127.0.0.1:{port}"));
        wait_until_up(&mut process, &format!("{}/moto-api/data.json", moto.url())).await?;
        Ok(Self { process, moto })
    }

    /// A client of it.
    pub fn client(&self) -> &Moto {
        &self.moto
    }
}

/// The processes of an EC2. Dropping this kills them.
#[derive(Debug)]
pub struct Ec2Processes {
    // Fields are dropped in this order.
    proxy: Process,
    moto: MotoServer,
    url: String,
    account: Account,
}

impl Ec2Processes {
    /// Starts moto, opens an account, and starts the proxy. `describe` makes a process of its name, program and arguments.
    pub async fn start(
        describe: impl Fn(&str, PathBuf, Vec<String>) -> Process,
        options: &Ec2Options,
    ) -> Result<Self, Ec2Error> {
        let moto = MotoServer::start(&describe).await?;
        let account = Account::open(moto.client()).await?;
        let program = executable("nodewright-ec2", PROXY_VARIABLE)?;
        let [port]: [u16; 1] = free_ports()?;
        let mut arguments = vec![format!("--moto-url={}", moto.client().url()), format!("--listen=127.0.0.1:{port}")];
        arguments.extend(options.kubeconfig.as_ref().map(|path| format!("--kubeconfig={}", path.display())));
        arguments.extend(options.flags.iter().cloned());
        let mut proxy = describe("ec2", program, arguments);
        let url = format!("http://127.0.0.1:{port}");
        proxy.start()?;
        wait_until_up(&mut proxy, &format!("{url}/healthz")).await?;
        Ok(Self { proxy, moto, url, account })
    }

    /// The URL of EC2.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// moto past the proxy.
    pub fn moto(&self) -> &Moto {
        self.moto.client()
    }

    /// The account.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Both processes.
    pub fn processes(&mut self) -> [&mut Process; 2] {
        [&mut self.moto.process, &mut self.proxy]
    }

    /// Kills the proxy (SIGKILL), starts it again, and waits until it answers.
    pub async fn crash_and_restart_proxy(&mut self) -> Result<(), Ec2Error> {
        self.proxy.kill();
        self.proxy.start()?;
        wait_until_up(&mut self.proxy, &format!("{}/healthz", self.url)).await
    }

    /// The AWS driver for this EC2, as a script in a folder. The flags are the driver's own.
    pub fn driver(&self, folder: &Path, flags: &[&str]) -> Result<DriverProgram, Ec2Error> {
        let program = executable("nodewright-driver-aws", DRIVER_VARIABLE)?;
        let flags: Vec<_> = [format!("--endpoint-url={}", self.url)]
            .into_iter()
            .chain(flags.iter().map(|flag| (*flag).to_owned()))
            .collect();
        Ok(DriverProgram::of(&program, folder, "driver-aws", &flags)?)
    }
}

async fn wait_until_up(process: &mut Process, url: &str) -> Result<(), Ec2Error> {
    let http = legacy::Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let uri: http::Uri = url.parse().map_err(|_| Ec2Error::Moto(format!("{url} is no URL")))?;
    let since = Instant::now();
    loop {
        let last = match http.get(uri.clone()).await {
            Ok(answer) if answer.status().is_success() => return Ok(()),
            Ok(answer) => answer.status().to_string(),
            Err(error) => error.to_string(),
        };
        process.check()?;
        if since.elapsed() > START_TIMEOUT {
            let (name, log, tail) = (process.name().to_owned(), process.log().to_owned(), process.log_tail());
            return Err(ProcessError::NotReady { name, waited: since.elapsed(), last, log, tail }.into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
