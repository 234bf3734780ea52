//! Shows the start of a devcluster on the terminal.

use std::{io, time::Duration};

use kube::Client;
use tokio::sync::watch;

use crate::{
    control_plane::{USER_AGENT, client},
    devcluster::{
        DevclusterError,
        cluster::NAMESPACE,
        directory::RunDirectory,
        machines::{Row, desired_replicas, is_running, machines, rows},
        progress::{History, Stage},
        screen::Screen,
    },
};

/// Time between two polls of the machines while they change.
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// Time between two polls when nothing has changed for some polls.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);
/// After how many polls without a change the interval grows.
const IDLE_AFTER: u32 = 20;

/// Tells users how to use the devcluster in this directory.
pub(crate) fn usage_text(directory: &str) -> String {
    format!(
        "
To use it:

  . {directory}/env
  kubectl get machinedeployments,machinesets,machines,machineclasses,nodes
  kubectl scale machinedeployment demo-pool --replicas=5
  curl -s $NODEWRIGHT_CLOUD_URL/vms

Logs are in {directory}/logs. {directory}/audit.log has a line for each request to the API server.
`make manager` starts the manager again after it has ended. `make down` ends everything."
    )
}

/// Shows machines as they change, until all are `Running` or the time is up.
pub(crate) async fn show_until_running(
    screen: &mut Screen<io::Stdout>,
    client: &Client,
    timeout: Duration,
) -> Result<(), DevclusterError> {
    let count = desired_replicas(client, NAMESPACE).await?;
    let since = std::time::Instant::now();
    loop {
        let seen = machines(client, NAMESPACE).await?;
        screen.show(rows(client, &seen, NAMESPACE).await?).map_err(output)?;
        if seen.len() == count && seen.iter().all(is_running) {
            return Ok(());
        }
        if since.elapsed() > timeout {
            let running = seen.iter().filter(|machine| is_running(machine)).count();
            let what = format!("{running} of {count} machines are Running");
            let seen = crate::devcluster::machines::table(&seen).to_string();
            return Err(DevclusterError::Machines { what, waited: timeout, seen });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Shows progress and machines until the devcluster ends.
pub(crate) async fn show_until_ended(
    mut updates: watch::Receiver<History>,
    directory: &RunDirectory,
) -> Result<(), DevclusterError> {
    let mut screen = Screen::new();
    let mut seen = 0;
    let mut view = None;
    loop {
        let (lines, stage) = {
            let history = updates.borrow_and_update();
            (history.new_lines(&mut seen), history.stage)
        };
        for line in lines {
            screen.print(&line).map_err(output)?;
        }
        let pause = match stage {
            Stage::Ended => return Ok(()),
            Stage::Starting => IDLE_INTERVAL,
            Stage::Ready => {
                let view = match &mut view {
                    Some(view) => view,
                    none => none.insert(MachineView::new(directory).await?),
                };
                view.poll(&mut screen).await?
            }
        };
        // Wait for an update or for the next poll, whichever is first.
        let _ = tokio::time::timeout(pause, updates.changed()).await;
    }
}

/// Polls and shows the machines.
struct MachineView {
    client: Client,
    directory: String,
    last: Vec<Row>,
    is_announced: bool,
    /// How many polls in a row found no change.
    idle: u32,
}

impl MachineView {
    async fn new(directory: &RunDirectory) -> Result<Self, DevclusterError> {
        let client = client(&directory.kubeconfig(), USER_AGENT).await?;
        Ok(Self { client, directory: directory.displayed(), last: Vec::new(), is_announced: false, idle: 0 })
    }

    /// Shows the machines. When all are running for the first time, also shows how to use the devcluster. Returns the time
    /// until the next poll.
    async fn poll(&mut self, screen: &mut Screen<io::Stdout>) -> Result<Duration, DevclusterError> {
        // The API server may be restarting.
        let Ok(seen) = machines(&self.client, NAMESPACE).await else { return Ok(IDLE_INTERVAL) };
        let Ok(rows) = rows(&self.client, &seen, NAMESPACE).await else { return Ok(IDLE_INTERVAL) };
        self.idle = if rows == self.last { self.idle.saturating_add(1) } else { 0 };
        self.last.clone_from(&rows);
        screen.show(rows).map_err(output)?;
        if !self.is_announced {
            let count = desired_replicas(&self.client, NAMESPACE).await.unwrap_or(usize::MAX);
            if seen.len() == count && seen.iter().all(is_running) {
                self.is_announced = true;
                let ready = format!("{count} machines are Running.\n{}", usage_text(&self.directory));
                screen.print(&format!("{ready}\nCtrl-C here ends everything, too.\n")).map_err(output)?;
            }
        }
        Ok(if self.idle < IDLE_AFTER { POLL_INTERVAL } else { IDLE_INTERVAL })
    }
}

fn output(source: io::Error) -> DevclusterError {
    DevclusterError::file("write to", "standard output")(source)
}
