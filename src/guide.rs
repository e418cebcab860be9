//! The manual, one page a module; in the repository it is the folder `docs`.

/// Makes a module of each page; in its text, `[name.md]` leads to the module of that name.
macro_rules! pages {
    ($($page:ident)*) => {
        pages! { @each ($($page)*) $($page)* }
    };
    (@each $all:tt $($page:ident)*) => {
        $(pages! { @page $all $page })*
    };
    // What is a picture in the repository stands at the end here, since pages have no files of their own.
    (@page ($($all:ident)*) algorithms) => {
        $(#[doc = concat!("[", stringify!($all), ".md]: crate::guide::", stringify!($all))])*
        #[cfg_attr(feature = "admin", doc = "[admin.md]: crate::admin")]
        #[doc = "[edge.svg]: #edge"]
        #[doc = "[overload.svg]: #overload"]
        #[doc = concat!(
            "\n", include_str!("../docs/algorithms.md"),
            "\n<div id=\"edge\">\n", include_str!("../docs/images/edge.svg"), "\n</div>\n",
            "\n<div id=\"overload\">\n", include_str!("../docs/images/overload.svg"), "\n</div>\n",
        )]
        pub mod algorithms {}
    };
    (@page ($($all:ident)*) $page:ident) => {
        $(#[doc = concat!("[", stringify!($all), ".md]: crate::guide::", stringify!($all))])*
        #[cfg_attr(feature = "admin", doc = "[admin.md]: crate::admin")]
        #[doc = concat!("\n", include_str!(concat!("../docs/", stringify!($page), ".md")))]
        pub mod $page {}
    };
}

pages! {
    start
    algorithms
    keys
    proxies
    several
    plans
    configuration
    clients
    failure
    redis
    scaling
    performance
    testing
    warnings
    idempotency
    concurrency
    leases
    migrating
    comparison
    faq
}
