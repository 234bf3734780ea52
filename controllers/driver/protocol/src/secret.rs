//! `Debug` of the messages that hold secrets, without them.

use std::fmt;

use super::v1::{Secrets, UserData};

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} keys)", self.data.len())
    }
}

impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserData({} bytes)", self.text.len())
    }
}

#[cfg(test)]
mod tests {
    use crate::v1::{Class, CreateMachineRequest, MachineRequest, Secrets, UserData};

    #[test]
    fn what_is_secret_is_not_printed() {
        let secret = "hunter2";
        let data = [("password".to_owned(), secret.as_bytes().to_vec())].into();
        let class = Class { name: "c".to_owned(), secrets: Some(Secrets { data }), ..Class::default() };
        let machine = MachineRequest { class: Some(class), ..MachineRequest::default() };
        let user_data = Some(UserData { text: secret.to_owned() });
        let printed = format!("{:?}", CreateMachineRequest { machine: Some(machine), user_data, ..Default::default() });
        let bytes = format!("{:?}", secret.as_bytes());
        assert!(!printed.contains(secret) && !printed.contains(bytes.trim_matches(['[', ']'])), "{printed}");
    }
}
