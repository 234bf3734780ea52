//! Shows how a set comes up.

use std::{io, time::Duration};

use kube::Client;
use tokio::sync::watch;

use crate::{
    DevclusterError,
    devcluster::NAMESPACE,
    directory::RunDirectory,
    journal::{Stage, Told},
    machines::{Row, is_running, machines, wanted},
    screen::Screen,
};
use nodewright_e2e_control_plane::{USER_AGENT, client};

/// How often the machines are looked at while they change, and when nothing has changed for long.
const LOOK: Duration = Duration::from_millis(300);
const LAZY_LOOK: Duration = Duration::from_secs(2);

/// How to go on from here, for people. `directory` is that of the set, as they would write it.
pub(crate) fn reach_text(directory: &str) -> String {
    format!(
        "
To reach it:

  . {directory}/env
  kubectl get machinedeployments,machinesets,machines,machineclasses,nodes
  kubectl scale machinedeployment demo-pool --replicas=5
  curl -s $NODEWRIGHT_CLOUD_URL/vms

Logs are in {directory}/logs, and {directory}/audit.log tells of each request to the API server.
`make manager` starts the manager again, should it end. `make down` ends everything."
    )
}

/// Shows machines as they change until all that are asked for are `Running`, or the time is up.
pub(crate) async fn until_running(
    screen: &mut Screen<io::Stdout>,
    client: &Client,
    timeout: Duration,
) -> Result<(), DevclusterError> {
    let count = wanted(client, NAMESPACE).await?;
    let since = std::time::Instant::now();
    loop {
        let seen = machines(client, NAMESPACE).await?;
        screen.show(seen.iter().map(Row::from).collect()).map_err(output)?;
        if seen.len() == count && seen.iter().all(is_running) {
            return Ok(());
        }
        if since.elapsed() > timeout {
            let running = seen.iter().filter(|machine| is_running(machine)).count();
            let what = format!("{running} of {count} machines are Running");
            let seen = crate::machines::table(&seen).to_string();
            return Err(DevclusterError::Machines { what, waited: timeout, seen });
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Shows everything until the set is over.
pub(crate) async fn until_over(
    mut told: watch::Receiver<Told>,
    directory: &RunDirectory,
) -> Result<(), DevclusterError> {
    let mut screen = Screen::new();
    let mut seen = 0;
    let mut look = None;
    loop {
        let (lines, stage) = {
            let told = told.borrow_and_update();
            (told.news(&mut seen), told.stage)
        };
        for line in lines {
            screen.say(&line).map_err(output)?;
        }
        let pause = match stage {
            Stage::Over => return Ok(()),
            Stage::Starting => LAZY_LOOK,
            Stage::Ready => {
                let look = match &mut look {
                    Some(look) => look,
                    none => none.insert(Look::start(directory).await?),
                };
                look.once(&mut screen).await?
            }
        };
        // A look that comes a moment later does no harm, nor does one more.
        let _ = tokio::time::timeout(pause, told.changed()).await;
    }
}

/// Looks at the machines again and again.
struct Look {
    client: Client,
    directory: String,
    last: Vec<Row>,
    is_announced: bool,
    /// How many looks have shown nothing new.
    idle: u32,
}

impl Look {
    async fn start(directory: &RunDirectory) -> Result<Self, DevclusterError> {
        let client = client(&directory.kubeconfig(), USER_AGENT).await?;
        Ok(Self { client, directory: directory.shown(), last: Vec::new(), is_announced: false, idle: 0 })
    }

    /// Shows the machines; the first time that all are there, also how to reach the set. Returns how long to wait.
    async fn once(&mut self, screen: &mut Screen<io::Stdout>) -> Result<Duration, DevclusterError> {
        // The API server may just be started again; then there is nothing new to show.
        let Ok(seen) = machines(&self.client, NAMESPACE).await else { return Ok(LAZY_LOOK) };
        let rows: Vec<_> = seen.iter().map(Row::from).collect();
        self.idle = if rows == self.last { self.idle.saturating_add(1) } else { 0 };
        self.last.clone_from(&rows);
        screen.show(rows).map_err(output)?;
        if !self.is_announced {
            let count = wanted(&self.client, NAMESPACE).await.unwrap_or(usize::MAX);
            if seen.len() == count && seen.iter().all(is_running) {
                self.is_announced = true;
                let ready = format!("{count} machines are Running.\n{}", reach_text(&self.directory));
                screen.say(&format!("{ready}\nSo does Ctrl-C here.\n")).map_err(output)?;
            }
        }
        Ok(if self.idle < 20 { LOOK } else { LAZY_LOOK })
    }
}

fn output(source: io::Error) -> DevclusterError {
    DevclusterError::file("write to", "standard output")(source)
}
