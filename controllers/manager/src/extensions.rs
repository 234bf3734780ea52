//! The flag of the extensions that MachineConfigs may ask for, of the manager and of `render`.

use clap::Args;
use nodewright_render::rules::EXTENSIONS;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Node configuration")]
pub(crate) struct ExtensionFlags {
    /// Extensions of the operating system that a MachineConfig may ask for, separated by commas; `*` for any.
    #[arg(long, value_delimiter = ',', default_values_t = EXTENSIONS.map(str::to_owned), value_name = "NAME")]
    pub(crate) machine_config_extensions: Vec<String>,
}

impl ExtensionFlags {
    /// The names. `None`: any.
    pub(crate) fn allowed(&self) -> Option<Vec<String>> {
        let names = self.machine_config_extensions.iter().filter(|name| !name.is_empty()).cloned().collect::<Vec<_>>();
        (!names.iter().any(|name| name == "*")).then_some(names)
    }
}
