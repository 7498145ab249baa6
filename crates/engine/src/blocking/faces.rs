//! Writes the blocking face of a type from the list of its calls.

/// Makes methods that wait on the calling thread from the signatures of the calls of another type, which the face's first field holds:
/// `impl Table as db::Table { async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>>; }`. An `async fn` is run with
/// `block_on`, a `fn` is called. Type parameters stand in brackets, `fn get_with[R](…)`; an argument that is a face itself is the first, and
/// ends with a semicolon, `fn get(&self, table: &Table; key: …)`; behind `=>` stands what makes the face of the result. Each call's
/// documentation is a summary here, and a link.
macro_rules! blocking {
    (impl [$($generics:tt)*] $face:ty as $of:path { $($calls:tt)* }) => {
        blocking!(@face [$($generics)*] $face, $of, { $($calls)* });
    };
    (impl $($face:ident as $of:path),+ { $($calls:tt)* }) => {
        blocking!(@faces [$($face, $of);+] { $($calls)* });
    };
    (@faces [$($face:ident, $of:path);+] $calls:tt) => {
        $(blocking!(@face [] $face, $of, $calls);)+
    };
    (@face [$($generics:tt)*] $face:ty, $of:path, { $($calls:tt)* }) => {
        impl<$($generics)*> $face {
            blocking!(@calls $of; $($calls)*);
        }
    };

    (@calls $of:path;) => {};
    (@calls $of:path; $(#[$meta:meta])* async fn $name:ident $([$($generics:tt)*])? ($($args:tt)*) $(-> $result:ty)? $(=> $wrap:expr)?; $($rest:tt)*) => {
        blocking!(@call [$crate::sync::driver::block_on] $of, [$(#[$meta])*] $name [$($($generics)*)?] ($($args)*) [$($result)?] [$($wrap)?]);
        blocking!(@calls $of; $($rest)*);
    };
    (@calls $of:path; $(#[$meta:meta])* fn $name:ident $([$($generics:tt)*])? ($($args:tt)*) $(-> $result:ty)? $(=> $wrap:expr)?; $($rest:tt)*) => {
        blocking!(@call [] $of, [$(#[$meta])*] $name [$($($generics)*)?] ($($args)*) [$($result)?] [$($wrap)?]);
        blocking!(@calls $of; $($rest)*);
    };

    (@call $wait:tt $of:path, $meta:tt $name:ident $generics:tt (& $this:ident, $first:ident: &$face:ident; $($arg:ident: $type:ty),*) $result:tt $wrap:tt) => {
        blocking!(@method $wait $of, $meta $name $generics (&$this, $first: &$face, $($arg: $type),*) $result $wrap ($this.0.$name(&$first.0, $($arg),*)));
    };
    (@call $wait:tt $of:path, $meta:tt $name:ident $generics:tt (& $this:ident $(, $arg:ident: $type:ty)*) $result:tt $wrap:tt) => {
        blocking!(@method $wait $of, $meta $name $generics (&$this, $($arg: $type),*) $result $wrap ($this.0.$name($($arg),*)));
    };
    (@call $wait:tt $of:path, $meta:tt $name:ident $generics:tt (&mut $this:ident $(, $arg:ident: $type:ty)*) $result:tt $wrap:tt) => {
        blocking!(@method $wait $of, $meta $name $generics (&mut $this, $($arg: $type),*) $result $wrap ($this.0.$name($($arg),*)));
    };
    (@call $wait:tt $of:path, $meta:tt $name:ident $generics:tt ($this:ident $(, $arg:ident: $type:ty)*) $result:tt $wrap:tt) => {
        blocking!(@method $wait $of, $meta $name $generics ($this, $($arg: $type),*) $result $wrap ($this.0.$name($($arg),*)));
    };
    (@call $wait:tt $of:path, $meta:tt $name:ident $generics:tt ($($arg:ident: $type:ty),*) $result:tt $wrap:tt) => {
        blocking!(@method $wait $of, $meta $name $generics ($($arg: $type),*) $result $wrap (<$of>::$name($($arg),*)));
    };

    (@method [$($wait:tt)*] $of:path, [$($meta:tt)*] $name:ident [$($generics:tt)*] $args:tt [$($result:ty)?] [$($wrap:expr)?] $call:tt) => {
        $($meta)*
        ///
        #[doc = concat!("See [`", stringify!($of), "::", stringify!($name), "`](", stringify!($of), "::", stringify!($name), ").")]
        pub fn $name<$($generics)*> $args $(-> $result)? {
            $($wrap)?($($wait)* $call)
        }
    };
}
pub(super) use blocking;
