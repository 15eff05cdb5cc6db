/* tests/unit/test_devices.c: what `devices` becomes, with the driver's files in a folder of the test. */
#include "daemon/supervisor/devices.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct tt_config *parse(const char *yaml)
{
    struct tt_config *config = NULL;
    struct tt_error err;

    if (tt_config_parse(&config, yaml, strlen(yaml), "test", NULL, &err))
        fail_msg("%s", err.text);
    return config;
}

/* Chooses for a configuration; the choices are the caller's (free). */
static int choose(struct tt_device_choice **choices, const char *yaml, const char *root)
{
    struct tt_config *config = parse(yaml);
    struct tt_error err;
    int count = -1;

    if (tt_devices_choose(choices, &count, config, root, &err))
        fail_msg("%s", err.text);
    tt_config_free(config);
    return count;
}

static void shell(const char *format, const char *root)
{
    char command[4096];

    snprintf(command, sizeof command, format, root, root, root, root);
    assert_int_equal(system(command), 0);
}

static void auto_without_a_driver_is_the_cpu(void **state)
{
    struct tt_device_choice *choices;

    assert_int_equal(choose(&choices, "devices: auto\n", *state), 1);
    assert_string_equal(choices[0].name, "cpu");
    assert_false(choices[0].gpu);
    assert_int_equal(choices[0].precision, TT_FP32);
    free(choices);
}

static void auto_takes_the_gpus_whose_device_files_are_there(void **state)
{
    struct tt_device_choice *choices;
    const char *root = *state;
    char text[64];

    shell("mkdir -p %s/dev %s/proc/driver/nvidia/gpus/0000:3b:00.0 %s/proc/driver/nvidia/gpus/0000:af:00.0 "
          "%s/proc/driver/nvidia/gpus/0000:1a:00.0",
          root);
    shell("printf 'Model: \\t Tesla T4\\nDevice Minor: \\t 0\\n' > "
          "%s/proc/driver/nvidia/gpus/0000:3b:00.0/information; : > %s/dev/nvidia0; : > %s/dev/nvidiactl; "
          "printf 'Device Minor: \\t 2\\n' > %s/proc/driver/nvidia/gpus/0000:af:00.0/information",
          root);
    shell("printf 'Device Minor: \\t 1\\n' > %s/proc/driver/nvidia/gpus/0000:1a:00.0/information; "
          ": > %s/dev/nvidia1; true %s %s",
          root);
    assert_int_equal(choose(&choices, "devices: auto\n", root), 2); /* 2 was not given to this container */
    assert_string_equal(choices[0].select, "0000:1a:00.0");
    assert_string_equal(choices[1].select, "0000:3b:00.0");
    assert_true(choices[1].gpu);
    assert_int_equal(choices[1].precision, TT_FP16);
    tt_devices_describe(choices, 2, text, sizeof text);
    assert_string_equal(text, "gpu0, gpu1");
    free(choices);
    shell("rm -r %s/proc; true %s %s %s", root);
    assert_int_equal(choose(&choices, "devices: auto\n", root), 2); /* by the device files alone */
    assert_string_equal(choices[1].select, "1");
    free(choices);
}

static void named_devices_are_taken_as_they_are(void **state)
{
    struct tt_device_choice *choices;

    assert_int_equal(
        choose(&choices,
               "devices:\n  - {gpu: 3, precision: fp32, tile: {queries: 32, frames: 4}, arch: sm_75}\n"
               "  - {gpu: GPU-8f6c1234-aaaa-bbbb-cccc-0123456789ab}\n"
               "  - {gpu: \"0000:3b:00.0\"}\n  - {cpu: 2}\n  - {cpu: 4}\n",
               *state),
        5);
    assert_string_equal(choices[0].name, "gpu3");
    assert_int_equal(choices[0].precision, TT_FP32);
    assert_int_equal(choices[0].tile_queries, 32);
    assert_int_equal(choices[0].tile_frames, 4);
    assert_true(choices[0].sm_75 && !choices[1].sm_75);
    assert_string_equal(choices[1].name, "gpu-8f6c1234");
    assert_string_equal(choices[1].select, "GPU-8f6c1234-aaaa-bbbb-cccc-0123456789ab");
    assert_string_equal(choices[2].name, "gpu-0000_3b_00.0");
    assert_string_equal(choices[2].select, "0000:3b:00.0");
    assert_string_equal(choices[3].name, "cpu");
    assert_int_equal(choices[3].threads, 2);
    assert_string_equal(choices[4].name, "cpu2");
    free(choices);
}

static int make_root(void **state)
{
    char made[] = "/tmp/tt-devices-XXXXXX";

    *state = strdup(mkdtemp(made));
    return *state ? 0 : -1;
}

static int remove_root(void **state)
{
    shell("rm -rf %s; true %s %s %s", *state);
    free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(auto_without_a_driver_is_the_cpu, make_root, remove_root),
        cmocka_unit_test_setup_teardown(auto_takes_the_gpus_whose_device_files_are_there, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(named_devices_are_taken_as_they_are, make_root, remove_root),
    };
    return cmocka_run_group_tests_name("devices", tests, NULL, NULL);
}
